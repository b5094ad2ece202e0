#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/config/config.h"

#include "tests/equivalence/program.h"
#include "tests/equivalence/replica_ways.h"

namespace tessera::equivalence {

/// How a case is trained.
struct Strategy {
  config::Config config;
  /// What the modules are made with. Its scopes are empty when the partition is automatic or in the
  /// config.
  Build build;
  /// Pipeline rank by place where the partition is manual.
  std::map<Place, int> ranks;
  int rows = 1; // of one microbatch
  std::vector<int> rows_of_replica = {}; // in place of them, with replica_samples
  bool more_rows_of_odd_replicas = false;
  bool more_rows_in_odd_steps = false;
  int steps = 2; // of the optimizer
  int passes = 1; // backward passes for each of them
  bool overlap = true;
  bool average = true; // gradients over microbatches
  double bucket_mb = 25;
  bool two_losses = false; // in one call of backward
  ReplicaWays ways;
};

/// Degrees that are decided before the rest is drawn.
struct Degrees {
  int pipeline = 0; // 0: drawn
  int tensor = 1;
  bool prescaled = false;
  bool operations = false; // the partition is one of recorded operations
};

/// One that fits the tree and this number of ranks.
Strategy random_strategy(
    const Tree& tree,
    int world,
    std::uint64_t seed,
    std::uint64_t number,
    const Degrees& degrees = {});

/// Draws the keys of sharded data parallelism, but for the clipping.
void shard_parameters(Random& random, int shards, config::Config& config);

/// Parts that the batch of the world has: ranks that are fed samples of their own.
int replicas_of(const config::Config& config, int world);
/// Rows of one microbatch in a step with a backward, counted from 0.
int rows_of(const Strategy& strategy, int step, int replica);

/// By how much the gradients of a replica count.
double weight_of(const Strategy& strategy, int replica);

/// For people: what differs from a plain run.
std::string to_text(const Strategy& strategy);

} // namespace tessera::equivalence
