#include "cli/train/tensor_memory.h"

#include <algorithm>
#include <atomic>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "tessera/tensor/mapped_bytes.h"

#if __has_include(<malloc.h>)
#include <malloc.h>
#endif

namespace tessera::cli {

namespace {

std::atomic<std::int64_t> g_now{0};
std::atomic<std::int64_t> g_peak{0};
c10::Allocator* g_inner = nullptr;
c10::DeleterFnPtr g_inner_deleter = nullptr;

std::int64_t bytes_at(void* data) {
#if __has_include(<malloc.h>)
  return static_cast<std::int64_t>(::malloc_usable_size(data));
#else
  static_cast<void>(data);
  return 0;
#endif
}

void add(std::int64_t bytes) {
  const std::int64_t now = g_now.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  std::int64_t peak = g_peak.load(std::memory_order_relaxed);
  while (now > peak && !g_peak.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

void forget(void* data) {
  g_now.fetch_sub(bytes_at(data), std::memory_order_relaxed);
  g_inner_deleter(data);
}

// `allocate` is const in one version of libtorch and not in another, and copy_data is new: no
// `override`, so that all compile.
#ifdef __clang__
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Winconsistent-missing-override"
#endif
class Counting final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) const {
    return counted(g_inner->allocate(bytes));
  }
  c10::DataPtr allocate(std::size_t bytes) {
    return counted(g_inner->allocate(bytes));
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const {
    std::copy_n(static_cast<const char*>(from), bytes, static_cast<char*>(to));
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &forget;
  }

 private:
  static c10::DataPtr counted(c10::DataPtr memory) {
    void* data = memory.get();
    if (data == nullptr) {
      return memory; // of no bytes
    }
    if (memory.compare_exchange_deleter(g_inner_deleter, &forget)) {
      add(bytes_at(data));
    }
    return memory;
  }
};
#ifdef __clang__
#pragma clang diagnostic pop
#endif

} // namespace

void count_tensor_bytes() {
#if __has_include(<malloc.h>)
  if (g_inner != nullptr) {
    return;
  }
  g_inner = c10::GetCPUAllocator();
  g_inner_deleter = g_inner->raw_deleter();
  if (g_inner_deleter != nullptr) {
    // Never destroyed: tensors of static objects outlive what is.
    static auto* counting = new Counting;
    c10::SetCPUAllocator(counting, /*priority=*/1);
    MappedBytes::observe(&add);
  }
#endif
}

std::optional<std::int64_t> take_tensor_peak() {
  if (g_inner_deleter == nullptr) {
    return std::nullopt;
  }
  const std::int64_t now = g_now.load(std::memory_order_relaxed);
  return std::max(now, g_peak.exchange(now, std::memory_order_relaxed));
}

} // namespace tessera::cli
