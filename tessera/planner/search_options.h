#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "tessera/cost/constants.h"
#include "tessera/cost/strategy.h"

namespace tessera::planner {

struct SearchProgress {
  int done = 0; // degrees, microbatch sizes and placements looked at
  int total = 0;
  double best_seconds = 0; // infinite before anything fits
};

/// How strategies are found.
enum class Method {
  kAmp, // all degrees and microbatch sizes, placement heuristic, optimal layer
        // assignment (section 3.6)
  kAnnealing, // kAmp, then simulated annealing of the placement (section 4.2)
  kMegatron, // the least tp x pp that fits, even layers (section 4.1)
  kRandom // strategies drawn without a cost model (section 4.5, RS)
};

struct SearchOptions {
  Method method = Method::kAmp;
  int keep = 10; // best candidates that are returned
  std::uint64_t seed = 0;
  int samples = 50; // of kRandom
  int annealing_steps = 400;
  cost::Schedule schedule = cost::Schedule::kInterleaved;
  int active_microbatches = 0; // see cost::Strategy
  bool shard_optimizer_state = false;
  bool overlap_gradients = false;
  /// Only what the runtime of this version can run (`abilities.h`), priced as
  /// it runs: no activation checkpointing, pp + 2 active microbatches.
  bool runnable_only = false;
  /// So many of the best by estimate are executed by the simulator, which
  /// decides their order: it sees what equation (5) leaves out, ranks that
  /// share cores above all.
  int simulate = 0;
  int tensor_degree = 0; // only strategies of this degree; 0: of any
  /// Hosts were started in the cluster's order and cannot change it.
  bool keep_node_order = false;
  cost::Constants constants = {};
  /// Set from anywhere (a signal handler): the search returns its best so far.
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const SearchProgress&)> progress = {};
};

} // namespace tessera::planner
