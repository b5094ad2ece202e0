#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/equivalence/case.h"

namespace tessera::equivalence {

/// An error that is added to what the library has computed, to see it found.
struct Plant {
  double relative = 0; // 0: none
  /// "gradient", "norm", "value", "evaluation", or "loaded" (values after a checkpoint).
  std::string what = "gradient";
};

struct Outcome {
  /// What differs on this rank, one a line; empty when all is equal.
  std::vector<std::string> differences;
  bool planted = false; // on this rank
  double worst = 0; // relative error of all that was compared
  /// How far one process is from itself when the last bit of every parameter is
  /// another at the start, as `worst`; looked at only where numbers differ.
  double shaken = 0;
  /// One process reaches losses that are no numbers, where no loss scale answers for them.
  bool diverges = false;
};

/// Trains the case without the library and under its strategies, and compares losses, gradients of
/// inputs and parameters, their norms, and updated state. Collective over the world.
Outcome train_both(const Case& one, int world, std::uint64_t seed, const Plant& plant);

} // namespace tessera::equivalence
