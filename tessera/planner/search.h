#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/cost/strategy_cost.h"

namespace tessera::planner {

/// A strategy with its price.
struct Candidate {
  cost::Strategy strategy;
  cost::StrategyCost cost;
  /// Nodes in the order their devices were laid out; empty for a placement that
  /// no order of nodes gives.
  std::vector<int> node_order;
  /// Seconds of an iteration that was executed event by event; 0: it was not.
  double simulated_seconds = 0;

  /// The best that is known before it runs.
  double seconds() const {
    return simulated_seconds > 0 ? simulated_seconds : cost.seconds;
  }
};

struct SearchProgress {
  int done = 0; // degrees, microbatch sizes and placements looked at
  int total = 0;
  double best_seconds = 0; // infinite before anything fits
};

struct SearchOptions {
  /// "amp": all degrees and microbatch sizes, placement heuristic, optimal
  ///   layer assignment (section 3.6).
  /// "annealing": amp, then simulated annealing of the placement (section 4.2).
  /// "megatron": the least tp x pp that fits, even layers (section 4.1).
  /// "random": strategies drawn without a cost model (section 4.5, RS).
  std::string method = "amp";
  int keep = 10; // best candidates that are returned
  std::uint64_t seed = 0;
  int samples = 50; // of "random"
  int annealing_steps = 400;
  std::string schedule = "interleaved";
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

struct SearchResult {
  /// By Candidate::seconds, fastest first; all fit. "random": in that order
  /// too.
  std::vector<Candidate> best;
  int considered = 0;
  bool interrupted = false;
};

/// Throws: ConfigError for an unknown method and for a model that was not
/// measured on a device of the cluster. PlanError when nothing fits: names the
/// nearest strategy, how much memory it lacks, and what would make it fit.
SearchResult search(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options);

/// "tp 2 speed, prescaled batch"
std::string tensor_text(const cost::Strategy& strategy);
/// Degrees, microbatch size and placement in one line.
std::string headline(const cost::Strategy& strategy);

/// The parts of an estimate, stage by stage, as text for people.
std::string explain(
    const Candidate& candidate,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster);

/// One line for each candidate.
std::string summary(const SearchResult& result);

} // namespace tessera::planner
