#pragma once

#include <vector>

#include "tessera/cost/layer_table.h"
#include "tessera/planner/search_options.h"

namespace tessera::planner {

/// Lower bounds on `cost::price` of all strategies of some degrees and microbatch size, whatever
/// their placement and layer boundaries. Keeps references to its arguments. Threads: any.
///
/// The first two lines of price's formula are at least the larger of
/// - the exact optimum of the layer assignment where every layer is on the device that is fastest
///   for it, every link is the fastest of the cluster and every stage has the largest memory, and
/// - all work evenly on the fastest devices of the cluster, in proportion to their speeds, which
///   counts slow devices;
/// and what cores compute that ranks share. The optimizer and the gradients take at least what they
/// take where the largest stage is as small as boundaries allow. What is exposed of gradients that
/// travel beside backwards, and collectives that were measured, count as nothing.
///
/// On one kind of device with equal links nothing of this is relaxed but the order in which the
/// parts become small, so the bound is often the optimum.
class LowerBound {
 public:
  LowerBound(
      const cost::DescribedModel& model,
      const cost::Cluster& cluster,
      const SearchOptions& options);

  /// Returns seconds, infinite when nothing fits the devices. `strategy` needs no placement and no
  /// boundaries; `table` is its table.
  double seconds(const cost::Strategy& strategy, const cost::LayerTable& table) const;
  /// Returns the part of it that does not depend on the assignment of layers: optimizer and
  /// gradients.
  double exchange_seconds(const cost::Strategy& strategy, const cost::LayerTable& table) const;

 private:
  /// Returns the pace of hosts under which stages hold least, of those that some placement has.
  cost::HostPace least_holding(const cost::Strategy& strategy, const cost::LayerTable& table) const;
  /// Returns the most by which gradients of weights that nobody waits for shorten a pipeline's
  /// drain.
  double deferred_seconds(const cost::Strategy& strategy, const cost::LayerTable& table) const;
  double assigned_seconds(const cost::Strategy& strategy, const cost::LayerTable& table) const;
  double spread_seconds(const cost::Strategy& strategy, const cost::LayerTable& table) const;
  /// Returns the seconds of tensor-parallel traffic in the first `last` layers at the least.
  double tensor_seconds(const cost::LayerTable& table, int last) const;
  double send_seconds(const cost::LayerTable& table, int cut) const;

  const cost::DescribedModel& model_;
  const cost::Cluster& cluster_;
  const SearchOptions& options_;
  std::vector<int> kinds_; // that nodes have
  cost::StageLinks ideal_;
  double latency_seconds_ = 0; // of a message between stages
};

} // namespace tessera::planner
