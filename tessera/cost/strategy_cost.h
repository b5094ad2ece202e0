#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/cost/cluster.h"
#include "tessera/cost/constants.h"
#include "tessera/cost/described_model.h"
#include "tessera/cost/layer_table.h"
#include "tessera/cost/links.h"
#include "tessera/cost/prediction_range.h"
#include "tessera/cost/strategy.h"

namespace tessera::cost {

/// Estimate of one stage; where a pipeline rank holds several, of all of them together.
struct StageCost {
  double compute_seconds = 0; // of one microbatch, forward and backward
  double tensor_seconds = 0; // of its tensor-parallel traffic
  double waiting_seconds = 0; // in which devices wait for their host to start operators
  double send_seconds = 0; // of the activation to the next stage, and of its gradient
  double optimizer_seconds = 0;
  double parameters = 0; // on one rank
  int in_flight = 1;
  StageMemory memory;
  /// Device memory that the stage needs, including the driver's and what fragmentation
  /// loses, and the memory of its smallest device.
  double needed_bytes = 0;
  double device_bytes = 0;
  /// What a device offloads, and how much of its host's memory it may fill.
  double host_bytes = 0;
  double host_has_bytes = 0;

  double seconds() const {
    return compute_seconds + tensor_seconds + waiting_seconds;
  }
};

/// Estimate of one training iteration. The parts add up to `seconds`.
struct StrategyCost {
  double seconds = 0;
  double compute_seconds = 0; // of the slowest stage, all microbatches
  double tensor_seconds = 0; // of that stage's tensor-parallel traffic
  double waiting_seconds = 0; // in which that stage's devices wait for their host
  double bubble_seconds = 0; // filling, draining, waiting for links
  double shared_cores_seconds = 0; // in which ranks wait for cores of their host
  double transfer_seconds = 0; // between stages, not hidden
  double stall_seconds = 0; // of a network that stalls (Cluster::stalls)
  double gradient_seconds = 0; // of data-parallel traffic that is not hidden
  double optimizer_seconds = 0;
  std::vector<StageCost> stages; // one a pipeline rank
  /// The stage that needs the largest share of its devices' memory.
  int fullest_stage = 0;
  /// In which range the measured seconds lie, and the measured bytes of tensors on a device of the
  /// fullest stage, of which the estimate is StageMemory::total. Both say what is known of runs
  /// like those that are stored; the strategy with the least seconds has the least range too.
  Range seconds_range = {};
  std::optional<Range> memory_range = {};

  /// Returns the bytes that a device of the fullest stage needs.
  double needed_bytes() const {
    return stages[static_cast<std::size_t>(fullest_stage)].needed_bytes;
  }
  bool fits() const {
    const StageCost& stage = stages[static_cast<std::size_t>(fullest_stage)];
    return stage.needed_bytes <= stage.device_bytes && hosts_hold();
  }
  /// Returns whether the hosts hold what their devices offload.
  bool hosts_hold() const {
    return std::all_of(stages.begin(), stages.end(), [](const StageCost& stage) {
      return stage.host_bytes <= stage.host_has_bytes;
    });
  }
};

/// Returns what determines the memory of a stage of this strategy that has so many microbatches in
/// flight, at most, of those of a step, and whose hosts have this pace.
StageState stage_state(const Strategy& strategy, int in_flight, int microbatches, HostPace host);

/// Returns the seconds in which a device updates so many parameters: it reads and writes its
/// memory, and streams an offloaded state in and out beside that. 0 for a device whose memory's
/// bandwidth is not known, nor that of its updates, but for the streaming. Throws: ConfigError for
/// an offloaded state and a device whose link to its host is not known.
double optimizer_seconds(
    double parameters,
    double state_bytes,
    const DeviceKind& kind,
    const Strategy& strategy,
    const Constants& constants);

/// Returns whether every microbatch runs to its end before the next begins, as without a pipeline,
/// whatever Strategy::active_microbatches says; only a given order may say otherwise.
bool runs_one_at_a_time(const Strategy& strategy);

/// Returns the most microbatches that `stage` holds between forward and backward.
int in_flight(const Strategy& strategy, int stage, int microbatches);

/// Returns for how long the devices of a stage, of this kind, wait in one microbatch for their host
/// to start operators, beside which they compute and exchange. A host whose pipelines send between
/// nodes starts collectives later (Cluster::busy_start_seconds).
double waiting_seconds(
    const LayerTable& table,
    const Cluster& cluster,
    const PlacementLinks& links,
    const Strategy& strategy,
    int kind,
    int stage);

/// Does the same for any run of layers on a pipeline rank, of groups of so many ranks.
double waiting_seconds(
    const LayerTable& table,
    const Cluster& cluster,
    const PlacementLinks& links,
    int tensor_degree,
    int kind,
    int rank,
    std::pair<int, int> layers);

/// Returns whether the network stalls a strategy that is placed so.
bool stalls(const Cluster& cluster, const PlacementLinks& links);

/// Returns the pace of a host whose devices wait so long for it in a microbatch.
HostPace host_pace(bool stalls, double waiting_seconds);

/// Returns for how long a network that stalls holds up an iteration: every message of the stage
/// with most of them, and the messages that fill and drain the pipeline. Without messages data and
/// synchronisation stall twice.
double
stall_seconds(const Cluster& cluster, const PlacementLinks& links, int stages, int microbatches);

/// Estimates seconds and memory of a strategy by equations (3) to (5), extended by
/// shared links, uneven devices, latency, host overhead, the optimizer step, and
/// memory:
///
///   T = max over pipelines of
///         (m - 1) max_i max(t_i, e_i) + sum_i t_i + 2 sum_i e_i
///       + gradients + optimizer
///
/// for m microbatches, where t_i are the seconds of one microbatch on stage i, and e_i
/// those of one activation to the next stage, whose gradient returns (hence 2). If
/// ranks share the cores of a node, the pipeline takes at least as long as these
/// cores need for the work of all its ranks.
///
/// In a model that was traced, a backward that another rank waits for answers before it computes
/// gradients of weights, w_i seconds of t_i (LayerTable::deferred_seconds). The drain does not wait
/// for them: sum_i w_i is taken off, as long as T is no less than m max_i t_i.
///
/// Where pipeline ranks hold v stages in turns, t_i and e_i are those of all stages of rank i, and
/// what fills and drains the pipeline is one of v turns, while a microbatch still passes all of
/// them (decision 138). With P = max_i max(t_i, e_i):
///
///   T = max(m P + (sum_i t_i - max_i t_i) / v, (m - 1) P / v + sum_i t_i) + 2 sum_i e_i + ...
///
/// Replicas that take unlike numbers of samples (Strategy::replica_microbatch) are priced by
/// themselves, and the slowest counts; a stage's memory is that of the replica that fills its
/// devices most.
///
/// Units: seconds of one iteration, bytes of one device.
/// Throws: ConfigError as validate(Strategy) and LayerTable.
/// Source: Li et al. 2022, section 3.4; Narayanan et al. 2021, section 2.2 (a bubble of 1 / v); Qi
/// et al. 2023 (the two halves of a backward). In the first e_i does not limit the period, links
/// are not shared, and memory is not modelled.
StrategyCost price(
    const DescribedModel& model,
    const Cluster& cluster,
    const Strategy& strategy,
    const Constants& constants = {});

/// Does the same for searches, with a table and links that were made for this strategy. It does
/// not validate the strategy, whose replicas take as many samples each.
StrategyCost price(
    const DescribedModel& model,
    const Cluster& cluster,
    const Strategy& strategy,
    const LayerTable& table,
    const PlacementLinks& links,
    const Constants& constants);

/// Does the same for so many microbatches, whatever the model's batch makes of the strategy.
StrategyCost price(
    const DescribedModel& model,
    const Cluster& cluster,
    const Strategy& strategy,
    const LayerTable& table,
    const PlacementLinks& links,
    const Constants& constants,
    int microbatches);

} // namespace tessera::cost
