#pragma once

#include <vector>

#include "tessera/cost/cluster.h"
#include "tessera/cost/constants.h"
#include "tessera/cost/strategy.h"

namespace tessera::cost {

/// What a stage's place in the cluster gives it.
struct StageLinks {
  /// Bytes per second of its slowest tensor-parallel group's ring.
  double tensor_bytes_per_s = 0;
  /// Most nodes that one of its tensor-parallel groups spans.
  int tensor_nodes = 1;
  /// Bytes per second from it to the next stage, of the slowest pair.
  double next_bytes_per_s = 0;
  /// Bytes per second between it and stage 0, of the slowest pair; not for
  /// stage 0 itself.
  double home_bytes_per_s = 0;
};

/// The bandwidth that groups of a strategy get where they are placed: links of
/// a node belong to one pair of devices, a node's network is shared by all
/// flows that use it at the same time (in each direction).
struct PlacementLinks {
  std::vector<StageLinks> stages;
  /// Device kinds of a pipeline's stages, one entry a distinct pipeline.
  std::vector<std::vector<int>> pipelines;
  /// Per stage: the kinds of all its devices, each once.
  std::vector<std::vector<int>> kinds;
};

PlacementLinks place(const Strategy& strategy, const Cluster& cluster, const Constants& constants);

/// Seconds of one activation on its way from stage `stage` to the next one: of
/// a model that returns home by way of stage 0, and from the last stage back to
/// it. 0 when nothing is sent.
double send_seconds(
    const PlacementLinks& links,
    int stage,
    double bytes,
    bool returns_home,
    const Constants& constants);

/// Seconds until every stage's gradients are summed over replicas, and those of
/// parameters that stages share over those stages: traffic is added up on every
/// network connection and every device's links, which work at the same time;
/// the slowest counts. `parameters`, `whole` and `tied` hold the parameters of
/// each stage on one rank: all, those that are averaged over tensor-parallel
/// ranks too, and those that other stages hold as well.
/// Source: Li et al. 2022, equation (4), second term.
double gradient_sync_seconds(
    const Strategy& strategy,
    const Cluster& cluster,
    const std::vector<double>& parameters,
    const std::vector<double>& whole,
    const std::vector<double>& tied,
    const Constants& constants);

} // namespace tessera::cost
