#pragma once

#include <limits>
#include <string>
#include <vector>

#include "tessera/cost/staged_cost.h"
#include "tessera/planner/search_options.h"

namespace tessera::planner {

struct StagedCandidate {
  cost::StagedStrategy strategy;
  cost::StrategyCost cost;
};

struct StagedResult {
  /// Strategies that fit, fastest first; at most one for each number of microbatches.
  std::vector<StagedCandidate> best;
  /// Seconds that no strategy of own widths goes below by estimate, wherever its stages are.
  double lower_bound = std::numeric_limits<double>::infinity();
  /// Devices and layers that are next to each other and were only taken together, so that the
  /// search ends in seconds; 1 and 1: every width and every boundary was tried.
  int devices_together = 1;
  int layers_together = 1;
  bool interrupted = false; // by SearchOptions::stop
};

/// Finds strategies whose stages have devices, degrees, kinds of tensor parallelism, shares of a
/// microbatch and recomputation of their own, faster than `beat` seconds.
///
/// For every number of microbatches and order of nodes a dynamic program goes through the stages
/// from the last to the first. Its state is the layers and devices that are left, the number of
/// stages so far, which decides how many microbatches a stage holds, and the front stage's width
/// and division, on which the transfer to it depends; its value is the least sum of stages and
/// transfers none of which is longer than a bound. As in assign_layers the bound falls from one
/// answer's longest stage to below it, as long as one may win. A stage takes a run of devices next
/// to each other, recomputes only where it would not fit or be slower otherwise, and divides a
/// microbatch among its replicas so that the slowest is as fast as its memory allows. Devices in
/// front may be left out. Gradients and the optimizer are no part of the program: every answer is
/// priced whole.
///
/// On alike devices of one node the program is exact for the pipeline's time. Microbatches have at
/// most 64 samples together. `options`: keep, sharding of the optimizer's state, constants, node
/// order, stop.
/// Throws: ConfigError for a traced model, one that returns home, and options.runnable_only.
/// Source: Li et al. 2022, section 3.5 (stages by dynamic programming); Zheng et al. 2022, Alpa,
/// section 5.2 (stages of own widths under a falling longest stage).
StagedResult search_staged(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options,
    double beat = std::numeric_limits<double>::infinity());

/// Returns lines that list the strategies, stage by stage, with the bound and why none of them
/// runs.
std::string staged_text(const StagedResult& result, const cost::Cluster& cluster);

} // namespace tessera::planner
