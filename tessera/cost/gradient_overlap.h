#pragma once

#include <vector>

#include "tessera/cost/cluster.h"
#include "tessera/cost/constants.h"
#include "tessera/cost/strategy.h"

namespace tessera::cost {

/// What the reduction of a strategy's gradients depends on, one figure a stage.
struct GradientLoad {
  /// As for gradient_sync_seconds.
  std::vector<double> parameters;
  std::vector<double> whole;
  std::vector<double> tied;
  /// Of one microbatch's backward on the stage's fastest device, with recomputation.
  std::vector<double> backward_seconds;
};

/// Returns the seconds for which a step waits for its gradients after the last backward, if they
/// are reduced in buckets while the backwards of the last microbatch run.
///
/// A stage's buckets (Constants::gradient_bucket_bytes) become full one after the other as its
/// last backward proceeds, so the last one always waits for the end, and a stage whose gradients
/// fit into one bucket hides nothing behind itself. Later stages end earlier, by the backwards of
/// the stages before them. What shares a link is reduced one after the other. Parameters that
/// stages share are exchanged when all else has been reduced. With a divided optimizer state only
/// the half of the traffic that takes gradients to their owners runs beside backwards; the updated
/// parameters return behind the step.
///
/// Units: seconds. Source: Li, Shen et al. 2020, section 3.2; Karakus et al. 2021, appendix H.1;
/// `tessera/data_parallel`.
double exposed_gradient_seconds(
    const Strategy& strategy,
    const Cluster& cluster,
    const GradientLoad& load,
    const Constants& constants);

/// Returns whether reductions can run beside a backward on this cluster: not where ranks share the
/// cores of a node, since the cores that reduce then do not compute.
bool reduces_beside_backwards(const Cluster& cluster);

} // namespace tessera::cost
