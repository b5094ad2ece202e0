#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

namespace tessera::train {

/// What a step says of itself.
struct StepCall {
  std::string function; // type of the step function
  bool static_mode = true; // may be repeated as recorded
  int microbatches = 1;
  bool forward_only = false; // no graph is kept
  /// Rows of the batch: of the first tensor that is split. 0: there is none, or nobody asks.
  std::int64_t rows = 0;
  /// digest_of_argument of each argument, where ranks must have been given the same ones.
  std::vector<std::uint64_t> digests = {};
};

/// The user's function on one microbatch.
using StepFunction = std::function<c10::IValue(int microbatch)>;

/// StepEngine::run_step of the process. Collective over the world.
std::vector<c10::IValue> run_step(const StepCall& call, const StepFunction& run);

} // namespace tessera::train
