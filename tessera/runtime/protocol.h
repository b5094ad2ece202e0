#pragma once

#include <compare>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <c10/core/ScalarType.h>

#include "tessera/base/hash.h"
#include "tessera/schedule/schedule.h"
#include "tessera/transport/transport.h"

namespace tessera::runtime {

using schedule::Phase;

/// What a message between the servers of one pipeline is for.
enum class ServerMessage : std::uint8_t {
  kRequest, // run a phase of a module call
  kResponse, // its result, or the text of its error
  kEnd, // the root is done with the step: results, or the text of its error
  kProbe, // a rank that waits too long asks: what do you wait for?
  kState, // the answer, as text
  kPacket, // replayed steps: tensors and no description of them
  kDone, // replayed steps, to pp rank 0: this rank has run all its turns
  kFailed, // to pp rank 0: the text of an error that ends the step
  kForwardEnded // from pp rank 0: a microbatch calls no module forward any more
};

/// The four messages of a remote call that carry tensors.
enum class CallMessage : std::uint8_t {
  kArguments, // caller to owner, forward
  kResults, // owner to caller, forward
  kOutputGradients, // caller to owner, backward
  kInputGradients // owner to caller, backward
};
constexpr bool is_backward(CallMessage kind) {
  return kind == CallMessage::kOutputGradients || kind == CallMessage::kInputGradients;
}

/// Names a message of a remote call within its step, on every replica.
struct MessageId {
  std::uint64_t call = 0; // 0: of no call
  CallMessage kind = CallMessage::kArguments;
  auto operator<=>(const MessageId&) const = default;
};

/// The mode of a module where it was called. A replayed step does not carry it, because recorded
/// steps are distinguished by the modes of the models.
enum class ModuleMode : std::uint8_t { kUnchecked, kTraining, kEvaluation };

/// The fixed fields of every message between the servers of one pipeline.
/// Source: Karakus et al. 2021, appendix B (execution request).
struct Fields {
  ServerMessage kind = ServerMessage::kRequest;
  Phase phase = Phase::kForward;
  bool grad_enabled = false; // forward requests
  bool failed = false; // responses and ends: the body is an error's text
  bool autocast = false; // forward requests: CPU autocast and its dtype
  at::ScalarType autocast_dtype = at::ScalarType::Byte;
  ModuleMode module_mode = ModuleMode::kUnchecked; // forward requests
  CallMessage call_message = CallMessage::kArguments; // packets
  bool inputs_only = false; // backward requests: no gradients of parameters
  bool after_backward = false; // forward requests: the microbatch had a backward
  bool recompute_keeps_random = true; // forward requests: see nn::Recomputation
  bool recompute_keeps_products = false; // forward requests
  std::int32_t recompute_group = -1; // of this call alone; -1: as the module is marked
  std::int32_t microbatch = -1;
  std::int32_t module = -1; // index into the module directory
  std::int32_t first = -1; // children of a Sequential, or -1, -1
  std::int32_t last = -1;
  std::int32_t program = -1; // packets: which static program is replayed
  // See random::Count: at the call in requests, after it in responses.
  std::int32_t random_samples = 0;
  std::uint32_t random_used = 0;
  std::int64_t serial = 0; // of the step, see StepWork
  std::uint64_t call = 0; // names the call within its step, on every replica
  std::uint64_t invoker = 0; // nn::CallKey::hash
};
static_assert(std::is_trivially_copyable_v<Fields>);
static_assert(sizeof(Fields) <= sizeof(transport::Header));

inline transport::Header to_header(const Fields& fields) {
  transport::Header header{};
  std::memcpy(header.data(), &fields, sizeof(fields));
  return header;
}

inline Fields from_header(const transport::Header& header) {
  Fields fields;
  std::memcpy(&fields, header.data(), sizeof(fields));
  return fields;
}

/// Return the message that starts a phase of a call, and the one that answers it.
inline MessageId request_message(const Fields& fields) {
  const bool forward = fields.phase == Phase::kForward;
  return {fields.call, forward ? CallMessage::kArguments : CallMessage::kOutputGradients};
}
inline MessageId response_message(const Fields& fields) {
  const bool forward = fields.phase == Phase::kForward;
  return {fields.call, forward ? CallMessage::kResults : CallMessage::kInputGradients};
}

/// Makes an id of two ids; the ids of different pairs stay distinct.
constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  return mix_bits(a + kMixStep * (b + 1));
}

} // namespace tessera::runtime
