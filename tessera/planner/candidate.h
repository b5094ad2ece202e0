#pragma once

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

struct SearchResult {
  /// By Candidate::seconds, fastest first; all fit.
  std::vector<Candidate> best;
  int considered = 0;
  bool interrupted = false;
};

} // namespace tessera::planner
