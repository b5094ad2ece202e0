#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/equivalence/program.h"
#include "tests/equivalence/strategy.h"

namespace tessera::equivalence {

struct Outcome {
  /// What differs on this rank, one a line; empty when all is equal.
  std::vector<std::string> differences;
  bool planted = false; // on this rank
  double worst = 0; // relative error of all that was compared
  /// How far one process is from itself when the last bit of every parameter is
  /// another at the start, as `worst`; looked at only where numbers differ.
  double shaken = 0;
};

/// Trains the tree without the library and under the strategy, and compares
/// losses, gradients of inputs and parameters, and updated state. `plant`
/// (relative) is added to one gradient of each rank, to see it found.
/// Collective over the world.
Outcome
train_both(const Tree& tree, const Strategy& strategy, int world, std::uint64_t seed, double plant);

} // namespace tessera::equivalence
