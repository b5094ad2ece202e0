#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tessera/base/hash.h"
#include "tessera/schedule/schedule.h"
#include "tessera/transport/transport.h"

namespace tessera::runtime {

using schedule::Phase;

enum class Kind : std::uint8_t {
  kRequest, // run a phase of a module call
  kResponse, // its result, or the text of its error
  kEnd, // the root is done with the step: results, or the text of its error
  kProbe, // a rank that waits too long asks: what do you wait for?
  kState, // the answer, as text
  kPacket, // static steps: tensors, without a word about them
  kDone, // static steps, to pp rank 0: all turns were had
  kFailed, // static steps, to pp rank 0: the text of an error
  kForwardEnded // from pp rank 0: a microbatch calls no module forward any more
};

/// The fixed fields of every message between the servers of one pipeline.
/// Source: Karakus et al. 2021, appendix B (execution request).
struct Fields {
  Kind kind = Kind::kRequest;
  Phase phase = Phase::kForward;
  std::uint8_t grad_enabled = 0; // forward requests
  std::uint8_t failed = 0; // responses and ends: the body is an error's text
  std::uint8_t autocast = 0; // forward requests: CPU autocast and its dtype
  std::int8_t autocast_dtype = 0;
  std::uint8_t training = 0; // forward requests: the module's mode where it was called
  std::uint8_t leg = 0; // packets: see Leg
  std::uint8_t inputs_only = 0; // backward requests: no gradients of parameters
  std::uint8_t after_backward = 0; // forward requests: the microbatch had a backward
  std::int32_t microbatch = -1;
  std::int32_t module = -1; // index into the module table
  std::int32_t first = -1; // children of a Sequential, or -1, -1
  std::int32_t last = -1;
  std::int32_t program = -1; // static steps: which is repeated
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

/// Returns an id made of two: ids made of ids stay distinct.
inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  return mix_bits(a + kMixStep * (b + 1));
}

} // namespace tessera::runtime
