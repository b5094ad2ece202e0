#pragma once

#include <string>
#include <vector>

#include "tessera/nn/replace/registry.h"

namespace tessera::models {

/// A tensor of a module and what it is called in its distributed form.
struct StateName {
  std::string original;
  std::string distributed;
  bool transposed = false;
};
using StateNames = std::vector<StateName>;

/// The same for a weight and a bias.
void add_linear(
    StateNames& names,
    const std::string& original,
    const std::string& distributed,
    bool transposed = false);

/// Renames, transposes where asked for, and leaves out what has no name here.
nn::StateMap renamed_to_distributed(const StateNames& names, const nn::StateMap& state);
nn::StateMap renamed_to_original(const StateNames& names, const nn::StateMap& state);

} // namespace tessera::models
