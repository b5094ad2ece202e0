#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/core/ivalue.h>

#include "tessera/transport/channel.h"
#include "tessera/transport/message.h"
#include "tessera/transport/peer.h"
#include "tessera/transport/shm/arena.h"
#include "tessera/transport/shm/ring.h"

namespace tessera::transport {

/// The sending half of a transport. Routes each tensor (paper, appendix G.1):
/// into the message itself when small, into the arena for peers of this node,
/// else - other node, or no room - through the channel.
class Outbox {
 public:
  Outbox(const std::vector<Peer>& peers, int self, Channel& channel, SharedCounters& counters);

  /// Sends to `peer`, a position in `peers`. Never waits for the receiver.
  /// Threads: any thread.
  void send(int peer, const Header& header, const c10::IValue& body);

  /// See Transport::send_packed.
  void send_packed(int peer, const Header& header, const std::vector<at::Tensor>& tensors);

  /// Writes the frames that found their ring full. Returns true when nothing is left, not counting
  /// peers that have left or died. Threads: message thread.
  bool flush();

 private:
  struct Pending {
    shm::FrameKind kind = shm::FrameKind::kMessage;
    std::vector<std::byte> message; // empty unless kind is kMessage
    std::uint64_t bytes = 0;
    std::uint64_t offset = 0;
  };
  // There is one for each peer; the mutex orders its frames and bulks.
  struct Lane {
    std::mutex mutex;
    std::unique_ptr<shm::RingWriter> ring; // null on another node
    std::deque<Pending> waiting; // found the ring full
  };
  struct Prepared {
    std::vector<std::byte> message;
    std::vector<BulkSend> bulks;
  };

  Prepared prepare(int peer, const Header& header, const c10::IValue& body);
  /// Finds memory for the bytes of a stub and records in the stub where it is.
  std::byte*
  place(int peer, comm::TensorStub& stub, std::vector<std::byte>& payload, Prepared& prepared);
  void post(int peer, Prepared prepared);
  void count(const Prepared& prepared, std::size_t payload_bytes);
  BulkSend make_bulk(int peer, std::size_t bytes, std::byte*& room);
  Pending frame(int peer, Prepared& prepared);
  bool flush_lane(const Peer& peer, Lane& lane);

  const std::vector<Peer>& peers_;
  const int self_;
  Channel& channel_;
  SharedCounters& counters_;
  shm::Arena arena_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

} // namespace tessera::transport
