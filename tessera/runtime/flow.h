#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

/// The flow of a step on one rank as plain data: what `static_mode` records and
/// decides from. Neither tensors nor messages are needed to read it.
namespace tessera::runtime {

/// The four ways that tensors go in a remote call.
enum class Leg : std::uint8_t {
  kArguments, // caller to owner, forward
  kResults, // owner to caller, forward
  kOutputGradients, // caller to owner, backward
  kInputGradients // owner to caller, backward
};

inline bool is_backward(Leg leg) {
  return leg == Leg::kOutputGradients || leg == Leg::kInputGradients;
}

struct LegId {
  std::uint64_t call = 0;
  Leg leg = Leg::kArguments;
  auto operator<=>(const LegId&) const = default;
};

/// A tensor's place in a leg: of the tensors in it, or for gradients of the
/// tensors that need one.
struct Slot {
  LegId leg;
  int index = 0;
  auto operator<=>(const Slot&) const = default;
};

struct SlotFlow {
  bool defined = true; // a gradient may be missing
  bool needs_grad = false; // of arguments and results
  /// In a received leg: the rank did more with it than hand it on.
  bool read = true;
  /// In a sent leg: the received slots whose sum this is; none: the rank made
  /// it.
  std::vector<Slot> origins;
  bool operator==(const SlotFlow&) const = default;
};

struct LegFlow {
  LegId id;
  bool sent = false; // else received
  int peer = 0; // pp rank of the other end
  std::vector<SlotFlow> slots;
};

/// Why a task got the baton.
enum class Cause : std::uint8_t { kStart, kResponse, kSchedule };

struct Turn {
  std::uint64_t task = 0;
  int number = 0; // of the task's turns, from 0
  Cause cause = Cause::kStart;
  /// What came: arguments or gradients that started the task, or the answer
  /// that it waited for. The step function starts with none (call 0).
  LegId leg;
  /// It changed a buffer, so no other turn may change places with it.
  bool keeps_place = false;
  bool operator==(const Turn&) const = default;
};

struct RankFlow {
  std::vector<Turn> turns; // in the order in which they ran
  std::vector<LegFlow> legs;
};

/// For the exchange between ranks.
std::vector<std::int64_t> to_numbers(const RankFlow& flow);
/// Throws: InternalError when these are not the numbers of a flow.
RankFlow flow_from_numbers(std::span<const std::int64_t> numbers);

} // namespace tessera::runtime
