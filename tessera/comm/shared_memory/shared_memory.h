#pragma once

#include <cstddef>
#include <memory>

namespace tessera::comm {

class Window;

/// What a group can do when its ranks map each other's memory. Such a group returns it from
/// `ProcessGroup::shared_memory()`.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  /// Makes memory of each rank that the others read where it lies. Address space is reserved at
  /// once; the system gives pages when they are first written. Units: bytes.
  /// Collective over the group. Throws: CommError on all ranks when one cannot map it.
  virtual std::shared_ptr<Window> make_window(std::size_t bytes_of_rank) = 0;
};

} // namespace tessera::comm
