#include "models/state_names.h"

namespace tessera::models {

namespace {

at::Tensor turned(const StateName& name, const at::Tensor& tensor) {
  // A bias is the same either way.
  return name.transposed && tensor.dim() == 2 ? tensor.t() : tensor;
}

} // namespace

void add_linear(
    StateNames& names,
    const std::string& original,
    const std::string& distributed,
    bool transposed) {
  for (const char* tensor : {".weight", ".bias"}) {
    names.push_back({original + tensor, distributed + tensor, transposed});
  }
}

nn::StateMap renamed_to_distributed(const StateNames& names, const nn::StateMap& state) {
  nn::StateMap result;
  for (const StateName& name : names) {
    const auto found = state.find(name.original);
    if (found != state.end()) {
      result[name.distributed] = turned(name, found->second);
    }
  }
  return result;
}

nn::StateMap renamed_to_original(const StateNames& names, const nn::StateMap& state) {
  nn::StateMap result;
  for (const StateName& name : names) {
    const auto found = state.find(name.distributed);
    if (found != state.end()) {
      result[name.original] = turned(name, found->second);
    }
  }
  return result;
}

} // namespace tessera::models
