#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace tessera::runtime {

/// Returns whether a change of one tensor in place may change the other.
bool share_memory(const at::Tensor& a, const at::Tensor& b);

/// Says which results of a call share memory with one of its arguments, or with another result, on
/// the rank that ran it. The caller's copies do not.
/// Not collective. Threads: any thread.
class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(const c10::IValue& arguments, const c10::IValue& result);

  /// "0:2 1:3", of tensors in for_each_tensor order, those of the arguments first.
  std::string to_text() const;
  /// Throws: InternalError for another text.
  static SharedMemory from_text(const std::string& text);

  struct Pair {
    std::int64_t result = 0;
    std::int64_t other = 0;
    bool operator==(const Pair&) const = default;
  };
  const std::vector<Pair>& pairs() const {
    return pairs_;
  }

 private:
  std::vector<Pair> pairs_; // both count from the first argument
};

/// Watches the caller's copies of what a call shared on its own rank. A script that changes one of
/// them in place while it still has the other would see that one changed too in a single process.
class SharedMemoryWatch {
 public:
  /// `module`: what ran, in words. Memory of tensors on the CPU is watched until it is given back.
  void add(
      const std::string& module,
      const SharedMemory& shared,
      const c10::IValue& arguments,
      const c10::IValue& result);

  /// Throws: UserError where a copy was changed before the memory of the other was given back.
  void check() const;

  struct Watched; // two copies

 private:
  std::vector<std::shared_ptr<Watched>> watched_;
};

} // namespace tessera::runtime
