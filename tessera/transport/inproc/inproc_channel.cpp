#include "tessera/transport/inproc/inproc_channel.h"

#include <cstring>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::transport::inproc {

InprocChannel::InprocChannel(int self, std::shared_ptr<Bulks> bulks)
    : self_(self), bulks_(std::move(bulks)) {}

void InprocChannel::send_bulk(BulkSend bulk) {
  const std::scoped_lock lock(bulks_->mutex);
  auto& queue = bulks_->queues[{self_, bulk.peer}];
  queue.push_back(std::move(bulk));
}

void InprocChannel::receive_bulk(BulkReceive bulk) {
  BulkSend sent;
  {
    // A bulk is sent before its message, so it is there.
    const std::scoped_lock lock(bulks_->mutex);
    auto& queue = bulks_->queues[{bulk.source, self_}];
    TESSERA_CHECK(!queue.empty(), "no bulk from ", bulk.source);
    sent = std::move(queue.front());
    queue.pop_front();
  }
  TESSERA_CHECK(sent.bytes == bulk.bytes, sent.bytes, " sent, expected ", bulk.bytes);
  std::memcpy(bulk.into, sent.data, bulk.bytes);
  bulk.done();
}

void InprocChannel::send_message(int peer, std::vector<std::byte>) {
  TESSERA_CHECK(false, "peer ", peer, " is in this process");
}

std::optional<std::chrono::nanoseconds> InprocChannel::progress(const Arrived&, bool) {
  return std::nullopt;
}

bool InprocChannel::sending_to(int) const {
  return false;
}

} // namespace tessera::transport::inproc
