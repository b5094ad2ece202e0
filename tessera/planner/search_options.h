#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "tessera/cost/constants.h"
#include "tessera/cost/strategy.h"

namespace tessera::planner {

/// The most stages a pipeline rank that plans for a run look at: with four turns a quarter of the
/// bubble is left, and every further one adds more messages than it takes bubble away.
inline constexpr int kMostStagesPerRank = 4;

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
  kUniform, // all degrees and microbatch sizes, even layers
  kRandom // strategies drawn without a cost model (section 4.5, RS)
};

/// What a search minimizes.
enum class Objective {
  kTime, // seconds of a step
  kCost, // price of a step (DeviceKind::price_per_hour)
  kEnergy // joules of a step (DeviceKind::watts)
};

struct SearchOptions {
  Method method = Method::kAmp;
  int keep = 10; // number of candidates to return, 1 or more
  std::uint64_t seed = 0;
  int samples = 50; // strategies that kRandom draws
  int annealing_steps = 400;
  cost::Schedule schedule = cost::Schedule::kInterleaved;
  int active_microbatches = 0; // see cost::Strategy
  /// Whether pipelines that would send through stage 0 run in fast mode (cost::Strategy). It
  /// repeats recorded steps, so the model's calls must be the same in every step.
  bool fast_mode = false;
  /// The most stages of a pipeline rank, in turns (cost::Strategy), that are tried on the best
  /// strategies where the simulator executes them in the runtime's order; 1: none.
  int most_stages_per_rank = 1;
  bool shard_optimizer_state = false;
  bool shard_parameters = false; // and gradients, with shard_optimizer_state
  bool offload_optimizer_state = false;
  bool offload_activations = false;
  /// Of a model whose activations are recomputed: all but the results of products with weights.
  bool keep_products = false;
  /// Whether a search that finds nothing that fits tries the ways to save memory that these options
  /// do not ask for: sharding the optimizer's state, recomputing activations, and, where
  /// runnable_only does not exclude them, sharding of parameters and offloading (on devices whose
  /// link to their host and whose host's memory are known), in all combinations. It returns the
  /// fastest strategies of all.
  bool save_memory = false;
  /// Whether these ways are compared with the strategies that do without, since they may pay
  /// otherwise: a larger microbatch, or fewer stages. Includes save_memory.
  bool compare_savings = false;
  /// Whether both schedules are compared, in place of `schedule` alone.
  bool compare_schedules = false;
  /// Whether whoever trains can recompute the layers' activations although no configuration says
  /// so, as a job can: runnable_only then does not exclude it, and what recomputes is listed also
  /// where it is faster than all that does not (with a larger microbatch, say).
  bool can_recompute = false;
  /// Bytes of a device's memory that may be taken, as if devices had no more; 0: all.
  double memory_limit_bytes = 0;
  /// Whether strategies that leave whole nodes out are searched too, and how many nodes must be
  /// left out at least.
  bool subsets = false;
  int spare_nodes = 0;
  /// Other objectives than time include `subsets`, without which the price of a step is its time.
  Objective objective = Objective::kTime;
  bool overlap_gradients = false;
  /// Whether replicas on unlike devices may take unlike numbers of samples (shares.h).
  bool unlike_samples = false;
  /// Whether layers of a strategy that divides them may stay whole (whole_layers.h).
  bool whole_layers = false;
  /// Whether to return only what the runtime of this version can run (`runtime_abilities.h`),
  /// priced as it runs: no activation checkpointing (but see can_recompute), pp + 2 active
  /// microbatches.
  bool runnable_only = false;
  /// Number of strategies, best by estimate, that the simulator executes and orders.
  /// It sees what equation (5) leaves out, above all ranks that share cores.
  int simulate = 0;
  int tensor_degree = 0; // of all strategies; 0: any
  /// Whether ranks must keep the cluster's order of nodes, because the hosts were
  /// already started in it.
  bool keep_node_order = false;
  /// Where the nodes have no more orders than these, apart from alike nodes in each other's place,
  /// all are tried; 0: those of the paper's heuristic alone (node_orders).
  int most_orders = 24;
  cost::Constants constants = {};
  /// When anybody sets it (a signal handler), the search returns its best so far.
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const SearchProgress&)> progress = {};
};

} // namespace tessera::planner
