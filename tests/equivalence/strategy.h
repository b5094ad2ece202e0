#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "tessera/config/config.h"

#include "tests/equivalence/program.h"

namespace tessera::equivalence {

/// How a case is trained.
struct Strategy {
  config::Config config;
  /// Rank by (module, child, layer) for `tessera::partition` scopes; empty when
  /// the partition is automatic or in the config.
  std::map<std::tuple<int, int, int>, int> scopes;
  int rows = 1; // of one microbatch
  int steps = 2; // of the optimizer
  int passes = 1; // backward passes for each of them
  bool overlap = true;
  bool average = true; // gradients over microbatches
  double bucket_mb = 25;
  bool two_losses = false; // in one call of backward
};

/// One that fits the tree and this number of ranks.
Strategy random_strategy(const Tree& tree, int world, std::uint64_t seed, std::uint64_t number);

/// For people: what differs from a plain run.
std::string to_text(const Strategy& strategy);

} // namespace tessera::equivalence
