#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "tessera/cost/group_place.h"
#include "tessera/cost/links.h"
#include "tessera/cost/staged_strategy.h"
#include "tessera/cost/strategy_cost.h"

namespace tessera::cost {

/// The layer tables of one model on one cluster, each made when it is first asked for. Keeps
/// references to its arguments. Threads: one at a time.
class StagedTables {
 public:
  StagedTables(const DescribedModel& model, const Cluster& cluster, const Constants& constants)
      : model_(model), cluster_(cluster), constants_(constants) {}

  /// Throws: ConfigError as LayerTable.
  const LayerTable& of(const TensorWay& way, int samples, bool recomputes);

  const DescribedModel& model() const {
    return model_;
  }
  const Cluster& cluster() const {
    return cluster_;
  }
  const Constants& constants() const {
    return constants_;
  }

 private:
  const DescribedModel& model_;
  const Cluster& cluster_;
  const Constants& constants_;
  std::map<std::tuple<int, Distribution, bool, int, bool>, std::unique_ptr<LayerTable>> tables_;
};

/// Returns the price of one replica of a stage for one microbatch of its samples.
/// `devices` are its devices; requires a stage that was placed.
StageCost price_replica(
    const StagedStrategy& strategy,
    int stage,
    int replica,
    int in_flight,
    const StageLinks& links,
    bool sends_between_nodes,
    StagedTables& tables);

/// What the activation of one microbatch, and its gradient, take between two stages that follow
/// each other. Units: seconds.
struct StageTransfer {
  double forward = 0;
  double backward = 0;
  bool between_nodes = false;
};

/// Returns the transfer from `from` to `to`. Both divide the same samples among their replicas, one
/// after the other; a replica sends each slice to those that it overlaps with. A tensor-parallel
/// rank receives what it needs from one rank of the sender, or in equal pieces from several where
/// one holds less. All flows of one cut run together and share networks and links of pairs.
StageTransfer transfer_between(
    const OwnStage& from,
    const OwnStage& to,
    const NodeLinks& links,
    StagedTables& tables);

/// Returns the seconds until every stage's gradients are summed over its own replicas, and those of
/// shared parameters over the stages that hold them; as for uniform strategies, traffic is added up
/// on everything that carries it. Of stages of different widths with shared parameters every device
/// takes part in one ring. The figures are those of one rank of each stage.
double gradient_sync_seconds(
    const StagedStrategy& strategy,
    const Cluster& cluster,
    const std::vector<double>& parameters,
    const std::vector<double>& whole,
    const std::vector<double>& tied,
    const Constants& constants);

/// Estimates seconds and memory of a strategy of own widths:
///
///   T = (m - 1) max_k max(t_k, f_k, b_k) + sum_k t_k + sum_k (f_k + b_k) + gradients + optimizer
///
/// for m microbatches, where t_k are the seconds of one on the slowest replica of stage k with its
/// share of the samples, and f_k and b_k those of the activation to the next stage and of its
/// gradient. Since the replicas of the next stage take slices of several, all of them wait for the
/// slowest. A uniform strategy whose stages are of one kind of device each has the price of
/// `price(Strategy)`. Gradients are not overlapped. Requires a strategy that is valid and a model
/// that does not return home. Throws: InternalError for such a model.
StrategyCost price(const StagedStrategy& strategy, StagedTables& tables);

} // namespace tessera::cost
