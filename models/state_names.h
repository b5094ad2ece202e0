#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/nn/replace/replacement_registry.h"

namespace tessera::models {

/// How the state of a module is called and laid out in its distributed form;
/// the state hooks of a registration (`given_to`).
class StateTranslation {
 public:
  StateTranslation&
  tensor(const std::string& original, const std::string& distributed, bool transposed = false);
  /// A weight and a bias.
  StateTranslation&
  linear(const std::string& original, const std::string& distributed, bool transposed = false);
  /// Tensors of the original that are one in the distributed form, joined along
  /// their first dimension.
  StateTranslation& joined(std::vector<std::string> originals, const std::string& distributed);
  /// The same in turns: `rows[i]` rows of each original, then again from the
  /// first one. Queries, keys and values by key head.
  StateTranslation& dealt(
      std::vector<std::string> originals,
      std::vector<std::int64_t> rows,
      const std::string& distributed);
  /// All of a part's, under prefixes.
  StateTranslation&
  part(const std::string& original, const std::string& distributed, const StateTranslation& of);

  /// Tensors without a name here, and names without a tensor, are left out; of
  /// joined tensors all are expected.
  nn::StateMap to_distributed(const nn::StateMap& state) const;
  nn::StateMap to_original(const nn::StateMap& state) const;

  template <typename Registration>
  void given_to(Registration registration) const {
    registration.state(
        [of = *this](const nn::StateMap& state) { return of.to_distributed(state); },
        [of = *this](const nn::StateMap& state) { return of.to_original(state); });
  }

 private:
  struct Renamed {
    std::string original;
    std::string distributed;
    bool transposed = false;
  };
  struct Joined {
    std::vector<std::string> originals;
    std::string distributed;
    std::vector<std::int64_t> rows = {}; // of a turn; empty: all of them
  };
  std::vector<Renamed> renamed_;
  std::vector<Joined> joined_;
};

} // namespace tessera::models
