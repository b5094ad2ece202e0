#pragma once

#include <vector>

#include "tessera/cost/strategy_cost.h"

namespace tessera::planner {

/// A strategy with its price.
struct Candidate {
  cost::Strategy strategy;
  cost::StrategyCost cost;
  /// Nodes in the order in which ranks were placed on their devices; empty for a
  /// placement that follows from no order of nodes.
  /// A strategy that leaves nodes out has only those that it uses.
  std::vector<int> node_order;
  /// Whether nodes are left out.
  bool leaves_out = false;
  /// Whether whoever trains recomputes as the strategy says (SearchOptions::can_recompute), so that
  /// no configuration must.
  bool can_recompute = false;
  int microbatches = 0; // of one replica in an iteration
  /// Seconds of an iteration in the simulator; 0: it was not simulated.
  double simulated_seconds = 0;
  /// The prediction corrected by trials of this or other candidates; 0: there were none.
  double calibrated_seconds = 0;

  /// Returns what is predicted without trials: the simulated seconds, else the estimate.
  double predicted_seconds() const {
    return simulated_seconds > 0 ? simulated_seconds : cost.seconds;
  }
  /// Returns the best prediction: the calibrated seconds, else the predicted ones.
  double seconds() const {
    return calibrated_seconds > 0 ? calibrated_seconds : predicted_seconds();
  }
};

struct SearchResult {
  /// Strategies that fit, by Candidate::seconds, fastest first; where a probe measured the cluster,
  /// the simplest of those that it does not tell apart from the fastest comes first (simplest.h).
  std::vector<Candidate> best;
  bool prefers_simplest = false; // whether the first takes longer than another one for that reason
  int considered = 0; // points of the space, or strategies that were drawn
  bool interrupted = false; // by SearchOptions::stop
  /// A lower bound on the estimated seconds of all strategies of the searched degrees, microbatch
  /// sizes, ways to save memory and devices, with one stage a pipeline rank, equal replicas
  /// and layers of one degree, whatever their placement and layer boundaries; 0: not known, because
  /// the search was interrupted or its method visits few points.
  double lower_bound = 0;
  /// The Pareto front of seconds, price and energy over the strategies of `best` and of every set
  /// of nodes, fastest first; empty where neither price nor energy is known.
  std::vector<Candidate> front = {};

  /// Returns by what share the first strategy's estimate is above the bound; requires both.
  double gap() const;
};

} // namespace tessera::planner
