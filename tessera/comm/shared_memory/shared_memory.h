#pragma once

#include <cstddef>
#include <memory>

namespace tessera::comm {

class Window;

/// What a group can do whose ranks map each other's memory; a group that can
/// gives it as `ProcessGroup::shared_memory()`.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  /// Memory of each rank that the others read where it lies. Address space is
  /// reserved, pages are given when first written. Units: bytes.
  /// Collective over the group. Throws: CommError on all ranks when one cannot map it.
  virtual std::shared_ptr<Window> make_window(std::size_t bytes_of_rank) = 0;
};

} // namespace tessera::comm
