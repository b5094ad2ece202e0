#pragma once

#include "tessera/simulator/simulate.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::simulator {

using cost::bare_constants;
using cost::small_cluster;
using cost::small_model;
using cost::small_strategy;

/// Simulations without latencies and losses of efficiency, whose times are sums of round numbers.
inline SimulationOptions bare() {
  SimulationOptions options;
  options.constants = bare_constants();
  return options;
}

} // namespace tessera::simulator
