#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tessera/base/deadline.h"
#include "tessera/transport/channel.h"
#include "tessera/transport/inbox.h"
#include "tessera/transport/outbox.h"
#include "tessera/transport/peer.h"
#include "tessera/transport/shm/waiter.h"
#include "tessera/transport/transport.h"

namespace tessera::transport {

/// The one Transport: an outbox, an inbox and a message thread, over segments
/// and a channel that the makers have prepared. The message thread sleeps
/// unless a ring is full or the channel has work.
class Mailbox : public Transport {
 public:
  struct Parts {
    std::vector<Peer> peers;
    int self = 0; // position in peers
    std::unique_ptr<Channel> channel;
    double zero_copy_share = 0.5;
    bool may_spin = false;
    /// The time that the destructor waits for peers to take what was sent to them.
    std::chrono::milliseconds drain{0};
  };
  explicit Mailbox(Parts parts);
  ~Mailbox() override;

  void send(int peer, const Header& header, const c10::IValue& body) override;
  void send_packed(int peer, const Header& header, const std::vector<at::Tensor>& tensors) override;
  std::optional<Parcel> try_receive() override;
  std::optional<Parcel> receive(std::chrono::milliseconds timeout) override;
  Counters counters() const override;

 private:
  void run_on_message_thread();
  std::optional<std::chrono::nanoseconds> work_on_message_thread();
  bool all_taken();
  void throw_if_failed();
  int index_of(int rank) const;
  const Peer* find_dead() const;

  Parts parts_;
  shm::Control& own_;
  std::unordered_map<int, int> index_of_rank_;
  SharedCounters counters_;
  Outbox outbox_;
  Inbox inbox_;
  shm::Waiter waiter_;
  Deadline next_check_; // of whether the peers live
  std::atomic<const Peer*> dead_{nullptr};

  std::atomic<bool> failed_{false};
  std::exception_ptr failure_; // set before failed_
  std::atomic<bool> stop_{false};
  std::thread thread_; // last: it uses all of the above
};

} // namespace tessera::transport
