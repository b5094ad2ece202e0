#include "tessera/runtime/order_channel.h"

#include <cstring>

namespace tessera::runtime {

OrderChannel::OrderChannel(comm::ProcessGroup& group, transport::Transport& transport)
    : group_(group), transport_(transport) {}

void OrderChannel::announce(std::int64_t serial, std::uint64_t key) {
  send({serial, {key, false, false}});
}

void OrderChannel::announce_end(std::int64_t serial, bool failed) {
  send({serial, {0, true, failed}});
}

void OrderChannel::send(const Message& message) {
  transport::Header header{};
  static_assert(sizeof(Message) <= sizeof(transport::Header));
  std::memcpy(header.data(), &message, sizeof(message));
  for (int i = 1; i < group_.size(); ++i) {
    transport_.send(group_.ranks()[i], header, c10::IValue());
  }
}

std::optional<OrderChannel::Order> OrderChannel::next(
    std::int64_t serial,
    std::chrono::milliseconds timeout) {
  for (;;) {
    const auto parcel = transport_.receive(timeout);
    if (!parcel) {
      return std::nullopt;
    }
    Message message;
    std::memcpy(&message, parcel->header.data(), sizeof(message));
    // Orders of a step that was aborted on this rank are skipped.
    if (message.serial >= serial) {
      return message.order;
    }
  }
}

} // namespace tessera::runtime
