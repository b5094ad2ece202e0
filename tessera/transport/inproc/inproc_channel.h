#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "tessera/transport/channel.h"

namespace tessera::transport::inproc {

/// Bulks in flight between the transports of one process, by (from, to).
struct Bulks {
  std::mutex mutex;
  std::map<std::pair<int, int>, std::deque<BulkSend>> queues;
};

/// Passes bulks inside a process. All peers are on one node here, so no messages pass.
class InprocChannel : public Channel {
 public:
  InprocChannel(int self, std::shared_ptr<Bulks> bulks);
  void send_bulk(BulkSend bulk) override;
  void receive_bulk(BulkReceive bulk) override;
  void send_message(int peer, std::vector<std::byte> message) override;
  std::optional<std::chrono::nanoseconds> progress(const Arrived& arrived, bool awaited) override;
  bool sending_to(int peer) const override;

 private:
  int self_;
  std::shared_ptr<Bulks> bulks_;
};

} // namespace tessera::transport::inproc
