#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "tessera/transport/channel.h"
#include "tessera/transport/message.h"
#include "tessera/transport/peer.h"
#include "tessera/transport/receive_pool.h"
#include "tessera/transport/shm/ring.h"

namespace tessera::transport {

/// The receiving half of a transport: turns frames and messages of other nodes
/// back into values, each source in its own order.
class Inbox {
 public:
  Inbox(
      const std::vector<Peer>& peers,
      int self,
      Channel& channel,
      double zero_copy_share,
      std::shared_ptr<ReceivePool> pool);

  /// Returns the next message of any source; sources take turns.
  /// Threads: one at a time.
  std::optional<Parcel> poll();

  /// Takes a message of another node. Threads: message thread.
  void arrived(int source, std::vector<std::byte> bytes);

 private:
  // A message of which a part is still to come through the channel.
  struct Incoming {
    std::vector<std::byte> bytes;
    MessageView message; // into bytes
    std::vector<at::Tensor> tensors;
    bool opened = false; // message and tensors are set
    std::atomic<int> missing{0};
  };
  using IncomingPtr = std::shared_ptr<Incoming>;
  struct Source {
    std::unique_ptr<shm::RingReader> ring; // null on another node
    std::mutex mutex;
    std::deque<IncomingPtr> queue;
    std::atomic<int> queued{0}; // read without the mutex
  };

  std::optional<Parcel> poll_source(int index);
  std::optional<Parcel> poll_queue(int index);
  bool poll_ring(int index, std::optional<Parcel>& parcel);
  void open(int index, const IncomingPtr& incoming);
  void expect(int index, const IncomingPtr& incoming, std::byte* into, std::size_t bytes);
  void enqueue(int index, IncomingPtr incoming);
  at::Tensor materialise(int index, const comm::TensorStub& stub, const MessageView& message);
  at::Tensor from_arena(int index, const comm::TensorStub& stub);
  Parcel finish(int index, const MessageView& message, std::vector<at::Tensor>& tensors);

  const std::vector<Peer>& peers_;
  const int self_;
  Channel& channel_;
  const double zero_copy_share_;
  const std::shared_ptr<ReceivePool> pool_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::size_t turn_ = 0;
};

} // namespace tessera::transport
