#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include <mpi.h>

#include "tessera/comm/backends/mpi/check.h"
#include "tessera/comm/collective.h"

namespace tessera::comm::mpi {

/// Passes messages between the ranks of a group over a communicator of its own and counts them for
/// each peer. So messages of a failed step that are still on their way can be taken out of MPI
/// before the next step, and the communicator stays in use. Peers are ranks in the group. Not
/// collective, but for `drain`.
/// Threads: any thread.
class PeerMessages {
 public:
  /// Takes `comm` over, whose ranks are the group's. `info` must outlive this.
  PeerMessages(const GroupInfo& info, MPI_Comm comm);
  ~PeerMessages();

  const GroupInfo& info() const {
    return info_;
  }
  MPI_Comm comm() const {
    return comm_.get();
  }

  /// One message of at most kPieceBytes. A receive that has finished is noted by `note_received`.
  MPI_Request send(int peer, int tag, const void* data, std::size_t bytes);
  MPI_Request receive(int peer, int tag, void* into, std::size_t bytes);
  void note_received(int peer);

  /// A send that may stay without a receiver until `drain`, and what keeps its memory.
  void leave(MPI_Request request, std::shared_ptr<const void> keep);

  /// Tests `request` until it has finished and calls `pause` in between, which throws to abort. MPI
  /// still uses the memory then, so `keep` holds it.
  void complete(
      MPI_Request request,
      const char* what,
      const std::function<void()>& pause,
      const std::shared_ptr<const void>& keep);

  /// Takes and drops every message that the peers have sent and this rank has not received, and
  /// ends the sends that were left. No memory of an earlier message is used by MPI afterwards.
  /// `pause` runs between two tests and throws to abort.
  /// Collective over the group; no other message is under way.
  void drain(const std::function<void()>& pause);

 private:
  struct Left {
    MPI_Request request;
    std::shared_ptr<const void> keep;
  };
  void drop_messages_of(int peer, std::uint64_t expected, const std::function<void()>& pause);

  const GroupInfo& info_;
  Communicator comm_;
  // Since the communicator was made, by peer.
  std::vector<std::atomic<std::uint64_t>> sent_;
  std::vector<std::atomic<std::uint64_t>> received_;
  std::mutex mutex_;
  std::vector<Left> left_; // guarded by mutex_
};

} // namespace tessera::comm::mpi
