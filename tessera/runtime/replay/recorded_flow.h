#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/runtime/protocol.h"

/// The flow of a step on one rank as plain data: what `static_mode` records and decides from. It
/// holds neither tensors nor messages.
namespace tessera::runtime {

/// Names a tensor of a message: its index among the tensors of arguments or results, or for
/// gradients among the tensors that require one.
struct Slot {
  MessageId message;
  int index = 0;
  auto operator<=>(const Slot&) const = default;
};

struct SlotFlow {
  bool defined = true; // a gradient may be missing
  bool requires_grad = false; // of arguments and results
  /// In a received message: whether the rank did more with it than forward it.
  bool read = true;
  /// In a sent message: the received slots whose sum this is; empty: the rank computed it.
  std::vector<Slot> origins;
  bool operator==(const SlotFlow&) const = default;
};

struct MessageFlow {
  MessageId id;
  bool sent = false; // else received
  int peer = 0; // pp rank of the other end
  std::vector<SlotFlow> slots;
};

/// Why a task got the baton: its start, the response it waited for, or the schedule.
enum class Cause : std::uint8_t { kStart, kResponse, kSchedule };

struct Turn {
  std::uint64_t task = 0;
  int number = 0; // of the task's turns, from 0
  Cause cause = Cause::kStart;
  /// The arguments or gradients that started the task, or the answer that it waited for. The step
  /// function starts without a message (call 0).
  MessageId message;
  /// Whether the turn changed a buffer, so that it must not change places with another one.
  bool keeps_place = false;
  bool operator==(const Turn&) const = default;
};

struct RankFlow {
  std::vector<Turn> turns; // in the order in which they ran
  std::vector<MessageFlow> messages;
};

/// Returns the flow in a form that ranks exchange.
std::vector<std::int64_t> to_numbers(const RankFlow& flow);
/// Returns the flow of such numbers. Throws: InternalError when they are not those of a flow.
RankFlow flow_from_numbers(std::span<const std::int64_t> numbers);

} // namespace tessera::runtime
