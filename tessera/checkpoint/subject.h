#pragma once

#include <map>
#include <string>

#include <torch/optim/optimizer.h>

#include "tessera/sharding/divided_parameters.h"
#include "tessera/state/layout.h"

namespace tessera::checkpoint {

/// A partitioned model and its optimizer, as this rank holds them.
struct Subject {
  std::string model; // its name
  std::map<std::string, int> partition; // module path -> pp rank
  const state::StateLayout* layout = nullptr;
  /// Each parameter as the optimizer updates it: 16-bit parameters are saved as their f32 masters.
  NamedTensors parameters;
  NamedTensors buffers;
  torch::optim::Optimizer* optimizer = nullptr; // none: the model alone
  /// To save; state and parameters are whole on ranks of rdp_rank 0, which alone write them, or
  /// `all_write`: every rank writes what it has here.
  state::OptimizerState state = {};
  bool all_write = false;
  /// What a loss scaler keeps, as JSON, the same on all ranks; "": there is none.
  std::string fp16_states = {};
  /// Of parameters that ranks hold together; `parameters` has their parts. May be nullptr.
  const sharding::DividedParameters* divided = nullptr;
};

} // namespace tessera::checkpoint
