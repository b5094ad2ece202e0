// The price of a whole strategy, whose replicas may take unlike numbers of samples.
#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "tessera/base/index.h"
#include "tessera/cost/group_place.h"
#include "tessera/cost/layer_table.h"
#include "tessera/cost/shared_cores.h"
#include "tessera/cost/strategy_cost.h"

namespace tessera::cost {

namespace {

// Returns the strategy as if all replicas took this many samples of a microbatch.
Strategy of_size(const Strategy& strategy, int samples) {
  Strategy result = strategy;
  result.replica_microbatch.clear();
  result.microbatch_size = samples;
  return result;
}

// Returns the links of all, with the devices of these replicas.
PlacementLinks of_replicas(
    const PlacementLinks& links,
    const Strategy& strategy,
    const Cluster& cluster,
    const Places& places,
    const std::vector<int>& replicas) {
  PlacementLinks result = links;
  std::set<std::vector<int>> pipelines;
  std::vector<std::set<int>> kinds(at(strategy.pp));
  for (const int replica : replicas) {
    for (int t = 0; t < strategy.tp; ++t) {
      std::vector<int> pipeline;
      for (int k = 0; k < strategy.pp; ++k) {
        pipeline.push_back(cluster.nodes[at(places.node(k, replica, t))].kind);
        kinds[at(k)].insert(pipeline.back());
      }
      pipelines.insert(std::move(pipeline));
    }
  }
  result.pipelines.assign(pipelines.begin(), pipelines.end());
  result.kinds.clear();
  for (const std::set<int>& set : kinds) {
    result.kinds.emplace_back(set.begin(), set.end());
  }
  return result;
}

double filled(const StageCost& stage) {
  return stage.needed_bytes / stage.device_bytes;
}

// What does not depend on how the computation of ranks that share cores is spread.
double pipeline_seconds(const StrategyCost& cost) {
  return cost.seconds - cost.gradient_seconds - cost.optimizer_seconds - cost.stall_seconds;
}

// Prices the replicas with as many samples by themselves, over links that all of them share; the
// slowest count. A stage's memory is that of the replica that fills its devices most.
StrategyCost price_uneven(
    const DescribedModel& model,
    const Cluster& cluster,
    const Strategy& strategy,
    const Constants& constants) {
  const Places places(strategy, cluster);
  const PlacementLinks links = place(strategy, cluster, constants);
  const int microbatches = strategy.microbatches(model.global_batch_size);
  std::map<int, std::vector<int>> replicas_of; // by their samples of a microbatch
  for (int d = 0; d < strategy.dp; ++d) {
    replicas_of[strategy.microbatch_of(d)].push_back(d);
  }
  // Cores compute what ranks of all sizes have, which no group of replicas knows.
  Cluster own_cores = cluster;
  for (Node& node : own_cores.nodes) {
    node.cores = 0;
  }
  SharedCores cores(cluster);
  std::vector<StrategyCost> costs;
  for (const auto& [samples, replicas] : replicas_of) {
    const Strategy even = of_size(strategy, samples);
    const LayerTable table(model, cluster, even, constants);
    costs.push_back(price(
        model,
        own_cores,
        even,
        table,
        of_replicas(links, strategy, cluster, places, replicas),
        constants,
        microbatches)); // each group has as many
    for (const int d : replicas) {
      for (int stage = 0; stage < strategy.stages(); ++stage) {
        const auto [first, last] = strategy.layers_of(stage);
        const int k = stage % strategy.pp;
        for (int t = 0; t < strategy.tp; ++t) {
          const int node = places.node(k, d, t);
          cores.add(
              node,
              strategy.rank(k, d, 0),
              microbatches * table.compute_seconds(cluster.nodes[at(node)].kind, first, last),
              microbatches * costs.back().stages[at(k)].tensor_seconds);
        }
      }
    }
  }
  StrategyCost result = *std::max_element(
      costs.begin(), costs.end(), [](const StrategyCost& a, const StrategyCost& b) {
        return pipeline_seconds(a) < pipeline_seconds(b);
      });
  double slowest = pipeline_seconds(result);
  const double without_transfer = slowest - result.transfer_seconds;
  result.shared_cores_seconds = std::max(0.0, cores.seconds() - without_transfer);
  slowest += result.shared_cores_seconds;
  for (const StrategyCost& cost : costs) {
    result.gradient_seconds = std::max(result.gradient_seconds, cost.gradient_seconds);
    result.optimizer_seconds = std::max(result.optimizer_seconds, cost.optimizer_seconds);
    for (int k = 0; k < strategy.pp; ++k) {
      StageCost& stage = result.stages[at(k)];
      const StageCost& other = cost.stages[at(k)];
      if (filled(other) > filled(stage)) {
        stage.memory = other.memory;
        stage.needed_bytes = other.needed_bytes;
        stage.device_bytes = other.device_bytes;
      }
      if (other.host_bytes / other.host_has_bytes > stage.host_bytes / stage.host_has_bytes) {
        stage.host_bytes = other.host_bytes;
        stage.host_has_bytes = other.host_has_bytes;
      }
      if (filled(stage) > filled(result.stages[at(result.fullest_stage)])) {
        result.fullest_stage = k;
      }
    }
  }
  result.seconds =
      slowest + result.gradient_seconds + result.optimizer_seconds + result.stall_seconds;
  result.seconds_range = seconds_range(model, cluster, result.seconds);
  result.memory_range = memory_range(model, result.stages[at(result.fullest_stage)].memory.total());
  return result;
}

} // namespace

StrategyCost price(
    const DescribedModel& model,
    const Cluster& cluster,
    const Strategy& strategy,
    const Constants& constants) {
  validate(
      strategy,
      cluster.device_count(),
      static_cast<int>(model.layers.size()),
      model.global_batch_size);
  if (!strategy.replica_microbatch.empty()) {
    return price_uneven(model, cluster, strategy, constants);
  }
  const LayerTable table(model, cluster, strategy, constants);
  return price(model, cluster, strategy, table, place(strategy, cluster, constants), constants);
}

} // namespace tessera::cost
