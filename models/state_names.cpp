#include "models/state_names.h"

#include <utility>

#include <ATen/ATen.h>

namespace tessera::models {

namespace {

at::Tensor turned(bool transposed, const at::Tensor& tensor) {
  // A bias is the same either way.
  return transposed && tensor.dim() == 2 ? tensor.t() : tensor;
}

} // namespace

StateTranslation& StateTranslation::tensor(
    const std::string& original,
    const std::string& distributed,
    bool transposed) {
  renamed_.push_back({original, distributed, transposed});
  return *this;
}

StateTranslation& StateTranslation::linear(
    const std::string& original,
    const std::string& distributed,
    bool transposed) {
  for (const char* name : {".weight", ".bias"}) {
    tensor(original + name, distributed + name, transposed);
  }
  return *this;
}

StateTranslation& StateTranslation::joined(
    std::vector<std::string> originals,
    const std::string& distributed) {
  joined_.push_back({std::move(originals), distributed});
  return *this;
}

StateTranslation& StateTranslation::part(
    const std::string& original,
    const std::string& distributed,
    const StateTranslation& of) {
  for (const Renamed& name : of.renamed_) {
    tensor(original + name.original, distributed + name.distributed, name.transposed);
  }
  for (Joined join : of.joined_) {
    for (std::string& name : join.originals) {
      name = original + name;
    }
    joined(std::move(join.originals), distributed + join.distributed);
  }
  return *this;
}

nn::StateMap StateTranslation::to_distributed(const nn::StateMap& state) const {
  nn::StateMap result;
  for (const Renamed& name : renamed_) {
    const auto found = state.find(name.original);
    if (found != state.end()) {
      result[name.distributed] = turned(name.transposed, found->second);
    }
  }
  for (const Joined& join : joined_) {
    std::vector<at::Tensor> parts;
    for (const std::string& name : join.originals) {
      parts.push_back(state.at(name));
    }
    result[join.distributed] = at::cat(parts);
  }
  return result;
}

nn::StateMap StateTranslation::to_original(const nn::StateMap& state) const {
  nn::StateMap result;
  for (const Renamed& name : renamed_) {
    const auto found = state.find(name.distributed);
    if (found != state.end()) {
      result[name.original] = turned(name.transposed, found->second);
    }
  }
  for (const Joined& join : joined_) {
    const auto parts =
        state.at(join.distributed).chunk(static_cast<std::int64_t>(join.originals.size()));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      result[join.originals[i]] = parts[i];
    }
  }
  return result;
}

} // namespace tessera::models
