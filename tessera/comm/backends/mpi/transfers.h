#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <mpi.h>

#include "tessera/comm/backends/mpi/peer_messages.h"

namespace tessera::comm::mpi {

/// The messages of one step of a collective, to and from other ranks, all in flight at once. Longer
/// ones travel in pieces.
/// Threads: one thread. Not collective.
class Transfers {
 public:
  Transfers(PeerMessages& messages, int tag) : messages_(messages), tag_(tag) {}

  /// These start a message to or from another rank; a rank sends nothing to itself. Zero bytes are
  /// a message too.
  void send(int peer, const void* from, std::size_t bytes);
  void receive(int peer, void* to, std::size_t bytes);

  bool done() const {
    return unfinished_ == 0;
  }
  /// Tests all requests once; returns true when a message has finished.
  /// Throws: CommError when MPI fails or a message has another size than expected.
  bool progress();

  /// "nothing came from rank 3, nothing was taken by rank 5"
  std::string missing() const;

  /// Cancels the receives, whose memory is not written any more. Sends stay as they are until
  /// PeerMessages::drain, since a peer may still take them; their memory must live as long.
  void drop();

 private:
  struct Message {
    int peer;
    bool receiving;
    std::size_t bytes;
    bool done = false;
  };
  template <typename Start>
  void start_pieces(int peer, bool receiving, std::size_t bytes, const Start& start);
  void finish(Message& message, const MPI_Status& status);

  PeerMessages& messages_;
  int tag_;
  std::vector<MPI_Request> requests_;
  std::vector<Message> list_; // of each request
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::size_t unfinished_ = 0;
};

} // namespace tessera::comm::mpi
