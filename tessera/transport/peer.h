#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "tessera/base/error.h"
#include "tessera/diagnostics/activity.h"
#include "tessera/diagnostics/process_watch.h"
#include "tessera/transport/shm/mapping.h"

namespace tessera::transport {

/// One rank of a transport as this rank sees it.
struct Peer {
  int rank = -1; // global
  std::string host;
  shm::MappingPtr mapping; // its segment; null on another node
  int ring = -1; // its position among the ranks of its node
  std::shared_ptr<diagnostics::ProcessWatch> process; // null in-process, other node
};

/// Counters that several threads raise.
struct SharedCounters {
  std::atomic<std::int64_t> messages_sent{0};
  std::atomic<std::int64_t> bytes_sent{0};
  std::atomic<std::int64_t> shared_memory_tensors{0};
  std::atomic<std::int64_t> mpi_tensors{0};
};

/// Returns whether the peer takes no more messages because it has left in good order or died. For
/// peers on other nodes this is not known.
inline bool has_left(const Peer& peer) {
  return peer.mapping &&
         (peer.mapping->control().closed.load() != 0 || (peer.process && peer.process->ended()));
}

/// Throws the CommError for a peer whose process has ended.
[[noreturn]] inline void throw_gone(const Peer& peer) {
  const std::string doing = diagnostics::activity::of_rank(peer.rank);
  diagnostics::activity::leave(); // this rank's end is no news of its own
  throw CommError(
      str("rank ",
          peer.rank,
          " (process ",
          peer.process->pid(),
          " on ",
          peer.host,
          ") has died",
          doing.empty() ? "" : "; it was in ",
          doing,
          "; see its own output for the cause"));
}

} // namespace tessera::transport
