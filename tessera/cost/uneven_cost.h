#pragma once

// Private to cost: replicas that take unlike numbers of samples.

#include "tessera/cost/strategy_cost.h"

namespace tessera::cost {

/// Estimates a strategy with Strategy::replica_microbatch as cost::price does: the replicas with as
/// many samples are priced by themselves, over links that all of them share, and the slowest count.
/// A stage's memory is that of the replica that fills its devices most. Does not validate.
StrategyCost price_uneven(
    const DescribedModel& model,
    const Cluster& cluster,
    const Strategy& strategy,
    const Constants& constants);

} // namespace tessera::cost
