#pragma once

#include <cstdint>
#include <vector>

/// The messages that this process hands to MPI, counted where it hands them over, and nodes of the
/// test's own making. The program that links counted_messages.cpp has its own MPI_Isend,
/// MPI_Comm_split_type and MPI_Get_processor_name, as MPI's profiling interface allows: they count
/// or emulate and call MPI's own. Threads: `set_nodes` and `reset` while no message is under way.
namespace tessera::testing {

/// Lets MPI say from now on that world rank r is on node `nodes[r]`, under the host name "node<n>".
/// Empty: what is so. Not collective; all ranks make the same call.
void set_nodes(std::vector<int> nodes);

/// What this process sent.
struct Sent {
  std::int64_t bytes = 0; // to other ranks
  std::int64_t between_nodes = 0; // of these, to ranks on another node
};
/// Returns what was sent since the last call of `take_sent`.
Sent take_sent();
/// Returns the sum over all ranks of the world of what was sent since the last call. Collective.
Sent take_sent_by_all();

} // namespace tessera::testing
