#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "tessera/cost/constants.h"
#include "tessera/cost/strategy.h"

namespace tessera::planner {

struct SearchProgress {
  int done = 0; // points (degrees and microbatch sizes) of `total`
  int total = 0;
  double best_seconds = 0; // infinite before anything fits
};

/// How strategies are found. Sections are those of Li et al. 2022.
enum class Method {
  kAmp, // all degrees and microbatch sizes, placement heuristic, optimal layer
        // assignment (section 3.6)
  kAnnealing, // kAmp, then simulated annealing of the placement (section 4.2)
  kMegatron, // the least tp x pp that fits, even layers (section 4.1)
  kRandom // strategies drawn without a cost model (section 4.5, RS)
};

struct SearchOptions {
  Method method = Method::kAmp;
  int keep = 10; // number of candidates to return, 1 or more
  std::uint64_t seed = 0;
  int samples = 50; // strategies that kRandom draws
  int annealing_steps = 400;
  cost::Schedule schedule = cost::Schedule::kInterleaved;
  int active_microbatches = 0; // see cost::Strategy
  bool shard_optimizer_state = false;
  /// Whether a search that finds nothing that fits tries the ways to save memory that it was not
  /// told to take: sharding the optimizer state, recomputing activations (only where
  /// runnable_only does not exclude it), and both. It returns the fastest strategies of all.
  bool save_memory = false;
  bool overlap_gradients = false;
  /// Whether to return only what the runtime of this version can run (`abilities.h`),
  /// priced as it runs: no activation checkpointing, pp + 2 active microbatches.
  bool runnable_only = false;
  /// Number of strategies, best by estimate, that the simulator executes and orders.
  /// It sees what equation (5) leaves out, above all ranks that share cores.
  int simulate = 0;
  int tensor_degree = 0; // of all strategies; 0: any
  /// Whether ranks must keep the cluster's order of nodes, because the hosts were
  /// already started in it.
  bool keep_node_order = false;
  cost::Constants constants = {};
  /// When anybody sets it (a signal handler), the search returns its best so far.
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const SearchProgress&)> progress = {};
};

} // namespace tessera::planner
