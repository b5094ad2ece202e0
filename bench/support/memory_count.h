#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

/// Bytes that CPU tensors of this process hold, now and at most.
namespace tessera::bench {

class MemoryCount {
 public:
  /// Counts all tensors made from now on. Threads: before others make tensors.
  static MemoryCount& install() {
    // Never destroyed: tensors of static objects outlive what is.
    static auto* count = new MemoryCount;
    static auto* allocator = [] {
      auto* made = new Counting(*count, c10::GetCPUAllocator());
      c10::SetCPUAllocator(made, /*priority=*/1);
      return made;
    }();
    static_cast<void>(allocator);
    return *count;
  }

  std::int64_t now() const {
    return now_.load();
  }
  std::int64_t most() const {
    return most_.load();
  }
  /// From here on `most` is of what follows.
  void restart() {
    most_.store(now_.load());
  }

 private:
  void add(std::int64_t bytes) {
    const std::int64_t now = now_.fetch_add(bytes) + bytes;
    std::int64_t most = most_.load();
    while (now > most && !most_.compare_exchange_weak(most, now)) {
    }
  }

  struct Piece {
    c10::DataPtr memory;
    std::int64_t bytes;
  };

  // `allocate` is const in one version of libtorch and not in another, and
  // copy_data is new: no `override`, so that both compile.
#ifdef __clang__
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Winconsistent-missing-override"
#endif
  class Counting final : public c10::Allocator {
   public:
    Counting(MemoryCount& count, c10::Allocator* inner) : count_(&count), inner_(inner) {}
    c10::DataPtr allocate(std::size_t bytes) const {
      return counted(inner_->allocate(bytes), bytes);
    }
    c10::DataPtr allocate(std::size_t bytes) {
      return counted(inner_->allocate(bytes), bytes);
    }
    void copy_data(void* to, const void* from, std::size_t bytes) const {
      std::copy_n(static_cast<const char*>(from), bytes, static_cast<char*>(to));
    }

    // What raw_allocate asks for: operators that call another library want
    // memory whose context is the memory itself.
    c10::DeleterFnPtr raw_deleter() const override {
      return &forget;
    }

   private:
    c10::DataPtr counted(c10::DataPtr memory, std::size_t bytes) const {
      void* data = memory.get();
      const auto size = static_cast<std::int64_t>(bytes);
      const c10::Device device = memory.device();
      if (data == nullptr) {
        return memory; // of no bytes
      }
      {
        const std::lock_guard lock(count_->mutex_);
        count_->pieces_.emplace(data, Piece{std::move(memory), size});
      }
      count_->add(size);
      return {data, data, &forget, device};
    }
    static void forget(void* data) {
      MemoryCount& count = install();
      std::unique_lock lock(count.mutex_);
      auto piece = count.pieces_.extract(data);
      lock.unlock();
      if (!piece.empty()) {
        count.now_.fetch_sub(piece.mapped().bytes);
      }
    }
    MemoryCount* count_;
    c10::Allocator* inner_;
  };
#ifdef __clang__
#pragma clang diagnostic pop
#endif

  std::mutex mutex_;
  std::unordered_map<void*, Piece> pieces_; // by where they begin
  std::atomic<std::int64_t> now_{0};
  std::atomic<std::int64_t> most_{0};
};

} // namespace tessera::bench
