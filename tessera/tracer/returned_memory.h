#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/StorageImpl.h>

namespace tessera::tracer {

/// Counts the memory of what modules return, each storage once: a module that returns what a module
/// inside of it, or one before it, has returned adds nothing.
/// Not collective. Threads: one at a time. Source: Karakus et al. 2021, appendix C.3, activation
/// memory; decision page 0010.
class ReturnedMemory {
 public:
  struct Bytes {
    std::int64_t all = 0; // of the tensors returned, each once
    std::int64_t added = 0; // of storages that no earlier call has counted
  };
  /// Counts the tensors of one call's results. Views of one storage add no more than the storage.
  Bytes count(const std::vector<c10::IValue>& results);

 private:
  std::unordered_set<const c10::StorageImpl*> counted_;
  // Weak references let the memory be freed, but keep its address from being used again.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> kept_;
};

} // namespace tessera::tracer
