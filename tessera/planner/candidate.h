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
  std::vector<int> node_order;
  /// Seconds of an iteration in the simulator; 0: it was not simulated.
  double simulated_seconds = 0;

  /// Returns the best prediction: the simulated seconds, else the estimate.
  double seconds() const {
    return simulated_seconds > 0 ? simulated_seconds : cost.seconds;
  }
};

struct SearchResult {
  /// Strategies that fit, by Candidate::seconds, fastest first.
  std::vector<Candidate> best;
  int considered = 0; // points of the space, or strategies that were drawn
  bool interrupted = false; // by SearchOptions::stop
};

} // namespace tessera::planner
