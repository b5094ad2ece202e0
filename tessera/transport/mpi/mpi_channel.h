#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tessera/transport/channel.h"

namespace tessera::transport::mpi {

struct MpiChannelOptions {
  std::vector<int> ranks; // of MPI_COMM_WORLD, ascending, own included
  std::vector<bool> other_node; // by position in `ranks`
  bool crowded = false; // whether the ranks of this node outnumber its cores
  std::function<void()> wake; // makes the message thread call progress
};

/// A channel over a communicator of its own. All MPI calls but those that make it happen on the
/// message thread. It listens only where ranks of other nodes exist, by polling at growing
/// intervals (up to a millisecond). Where ranks share cores a poll takes time from another one's
/// computation, so there the intervals are a share of what has been waited.
/// Collective over `ranks`. Threads: one of each rank.
/// Throws: CommError when MPI does not run or a call fails.
std::unique_ptr<Channel> make_mpi_channel(MpiChannelOptions options);

} // namespace tessera::transport::mpi
