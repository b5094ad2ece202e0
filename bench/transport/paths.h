#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/world.h"

namespace tessera::bench {

/// One way to get bytes to the partner rank and back, so that all ways are
/// timed by the same loops.
class Path {
 public:
  virtual ~Path() = default;
  virtual std::string name() const = 0;
  /// Sends `bytes` bytes of prepared data.
  virtual void send(std::size_t bytes) = 0;
  /// Waits for the next `bytes` bytes; `read` adds them up afterwards, as a
  /// consumer would.
  virtual void receive(std::size_t bytes, bool read) = 0;
};
using PathPtr = std::unique_ptr<Path>;

/// MPI_Send and MPI_Recv between buffers that are allocated and touched
/// beforehand.
PathPtr plain_mpi(int partner, std::size_t largest);

/// The transport: "shared memory" to a rank of this node, tensors not copied
/// out ("mapped") or copied out ("copied"), or "other node", where the ranks
/// are told that they live on different hosts.
/// Collective over the world.
enum class Kind { kMapped, kCopied, kOtherNode };
PathPtr transport(comm::World& world, int partner, std::size_t largest, Kind kind);

} // namespace tessera::bench
