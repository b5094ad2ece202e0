#pragma once

#include <string>
#include <vector>

#include "tessera/cost/cluster.h"
#include "tessera/cost/constants.h"
#include "tessera/cost/described_model.h"
#include "tessera/cost/layer_table.h"
#include "tessera/cost/links.h"
#include "tessera/cost/strategy.h"

namespace tessera::cost {

struct StageCost {
  double compute_seconds = 0; // one microbatch, forward and backward
  double tensor_seconds = 0; // its tensor-parallel traffic
  double send_seconds = 0; // activation to the next stage; so for the gradient
  double optimizer_seconds = 0;
  double parameters = 0; // on one rank
  int in_flight = 1;
  StageMemory memory;
  /// Device memory that the stage needs, with what the driver takes and what
  /// fragmentation loses; and what its smallest device has.
  double needed_bytes = 0;
  double device_bytes = 0;

  double seconds() const {
    return compute_seconds + tensor_seconds;
  }
};

/// Estimate of one training iteration. The parts add up to `seconds`.
struct StrategyCost {
  double seconds = 0;
  double compute_seconds = 0; // of the slowest stage, all microbatches
  double tensor_seconds = 0; // its tensor-parallel traffic
  double bubble_seconds = 0; // filling, draining, waiting for links
  double shared_cores_seconds = 0; // ranks of a host wait for its cores
  double transfer_seconds = 0; // between stages, not hidden
  double gradient_seconds = 0; // data-parallel traffic that is not hidden
  double optimizer_seconds = 0;
  std::vector<StageCost> stages;
  /// Stage that needs the largest share of its devices' memory.
  int fullest_stage = 0;

  double needed_bytes() const {
    return stages[static_cast<std::size_t>(fullest_stage)].needed_bytes;
  }
  bool fits() const {
    const StageCost& stage = stages[static_cast<std::size_t>(fullest_stage)];
    return stage.needed_bytes <= stage.device_bytes;
  }
};

/// Microbatches that stage `stage` holds between forward and backward.
int in_flight(const Strategy& strategy, int stage, int microbatches);

/// Prices a strategy: equations (3) to (5) with links that are shared, uneven
/// devices, latency, host overhead, the optimizer step, and memory.
///
/// A node's cores, where ranks share them, bound the same from below by the
/// work of all its ranks.
///
///   T = max over pipelines of
///         (m - 1) max_i max(t_i, e_i) + sum_i t_i + 2 sum_i e_i
///       + gradients + optimizer
///
/// for m microbatches; t_i one microbatch on stage i, e_i one activation to the
/// next stage (sent again as a gradient, hence 2).
///
/// Units: seconds of one iteration, bytes of one device.
/// Throws: ConfigError as validate(Strategy) and LayerTable.
/// Source: Li et al. 2022, section 3.4. There e_i limits no period, links are
/// not shared, and memory is not modelled.
StrategyCost price(
    const DescribedModel& model,
    const Cluster& cluster,
    const Strategy& strategy,
    const Constants& constants = {});

/// The same with a table of the strategy's degree, microbatch size and
/// checkpointing and its links, for searches.
StrategyCost price(
    const DescribedModel& model,
    const Cluster& cluster,
    const Strategy& strategy,
    const LayerTable& table,
    const PlacementLinks& links,
    const Constants& constants);

} // namespace tessera::cost
