#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>

#include <ATen/core/ivalue.h>

#include "tessera/runtime/protocol.h"
#include "tessera/runtime/shared_memory.h"
#include "tessera/tensor/random_state.h"
#include "tessera/transport/transport.h"

namespace tessera::runtime {

/// Thrown inside a suspended task whose step was aborted; unwinds user code.
class StepCancelled : public std::exception {
 public:
  const char* what() const noexcept override {
    return "the step was cancelled because another part of it failed";
  }
};

/// One unit of work of a step: the user's step function for a microbatch, or
/// one phase of a module call that another rank asked for.
struct Task {
  enum class Kind { kRoot, kCall };
  Kind kind = Kind::kRoot;
  std::uint64_t id = 0; // names the task on every replica
  int source = -1; // global rank that asked; -1 for the root
  Fields request; // microbatch and phase for the root
  c10::IValue body;
  std::function<void()> run;

  // While it runs:
  std::uint32_t calls = 0; // remote calls so far, for their ids
  std::uint32_t turns = 0; // times it was given the baton
  std::optional<RandomState> random; // none: the generator is left alone
  // While it waits: for the response to this call, or (0) for the schedule.
  std::uint64_t awaits = 0;
  int awaits_rank = -1;
  int awaits_module = -1;
  std::optional<transport::Parcel> response;
  std::optional<double> turn_start_us; // of the turn that runs, when recorded
  /// Another rank waits for what its backward computes next.
  bool awaited = false;
  /// Of what it called on other ranks.
  SharedMemoryWatch shared;
  /// It waits for nothing: its backward let a turn go first that another rank waits for.
  bool gave_way = false;
  bool responded = false; // its caller does not wait for what it does now
  bool cancelled = false;
  bool finished = false;
  std::exception_ptr error;
};

} // namespace tessera::runtime
