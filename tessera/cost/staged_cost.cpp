#include "tessera/cost/staged_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/index.h"
#include "tessera/cost/shared_cores.h"

namespace tessera::cost {

namespace {

// Returns the placement of a stage alone, in the form of those that price stages.
PlacementLinks as_placement(const StageLinks& links, bool sends_between_nodes) {
  PlacementLinks result;
  result.sends_between_nodes = sends_between_nodes;
  result.stages = {links};
  return result;
}

// The flows of one cut in one direction, added up on everything that carries them.
class Flows {
 public:
  Flows(const Cluster& cluster, const NodeLinks& links, const std::vector<int>& node_of_device)
      : cluster_(cluster), links_(links), node_of_(node_of_device) {}

  void add(int from, int to, double bytes) {
    const int out = node_of_[at(from)];
    const int in = node_of_[at(to)];
    double& between = pairs_[{from, to}];
    between += bytes;
    const auto& source = cluster_.nodes[at(out)];
    if (out == in) {
      longest_ = std::max(longest_, between / source.intra_bytes_per_s);
      return;
    }
    const auto& target = cluster_.nodes[at(in)];
    between_nodes_ = true;
    out_[out] += bytes;
    in_[in] += bytes;
    longest_ = std::max(
        {longest_,
         out_[out] / source.inter_bytes_per_s,
         in_[in] / target.inter_bytes_per_s,
         between / std::min(stream_bytes_per_s(source), stream_bytes_per_s(target))});
    for (const NodeLinks::Passed& one : links_.between(out, in)) {
      double& on_link = on_link_[one];
      on_link += bytes;
      longest_ = std::max(longest_, on_link / links_.bytes_per_s(one.link));
    }
  }

  double seconds(const Constants& constants) const {
    double latency = pairs_.empty() ? constants.link_latency_seconds : 0;
    for (const auto& [pair, bytes] : pairs_) {
      latency = std::max(
          latency,
          message_latency(links_, node_of_[at(pair.first)], node_of_[at(pair.second)], constants));
    }
    return longest_ / constants.link_efficiency + latency;
  }
  bool between_nodes() const {
    return between_nodes_;
  }

 private:
  const Cluster& cluster_;
  const NodeLinks& links_;
  const std::vector<int>& node_of_;
  std::map<std::pair<int, int>, double> pairs_; // of devices
  std::map<int, double> out_;
  std::map<int, double> in_;
  std::map<NodeLinks::Passed, double> on_link_;
  double longest_ = 0;
  bool between_nodes_ = false;
};

// Adds what the ranks of `to` receive from those of `from`, of which each has `has` bytes of a
// sample, and each receiver needs `needs`.
void add_slices(const OwnStage& from, const OwnStage& to, double has, double needs, Flows& flows) {
  const int senders = from.way.degree;
  const double parts = has > 0 ? std::round(needs / has) : 1;
  const int pieces = static_cast<int>(std::clamp(parts, 1.0, static_cast<double>(senders)));
  int to_first = 0; // sample
  int d = 0;
  int from_first = 0;
  for (int e = 0; e < to.replicas(); ++e) {
    const int to_last = to_first + to.samples[at(e)];
    while (to_first < to_last) {
      const int from_last = from_first + from.samples[at(d)];
      const int samples = std::min(to_last, from_last) - to_first;
      for (int t = 0; t < to.way.degree; ++t) {
        for (int piece = 0; piece < pieces; ++piece) {
          const int sender = (t * pieces + piece) % senders;
          flows.add(
              from.devices[at(d * senders + sender)],
              to.devices[at(e * to.way.degree + t)],
              samples * needs / pieces);
        }
      }
      to_first += samples;
      if (to_first == from_last) {
        from_first = from_last;
        ++d;
      }
    }
  }
}

// Returns the seconds in which a tensor-parallel group of a stage exchanges in one microbatch.
double tensor_seconds(const LayerTable& table, const OwnStage& stage, const StageLinks& links) {
  const PassSeconds tensor = table.tensor_seconds(stage.first_layer, stage.last_layer, links);
  const PassSeconds tail =
      stage.first_layer == 0 ? table.tail_tensor_seconds(links) : PassSeconds{};
  return tensor.forward + tensor.backward + tail.forward + tail.backward;
}

// Returns the most seconds that a node needs whose ranks share cores.
double shared_cores_seconds(
    const StagedStrategy& strategy,
    const std::vector<StageLinks>& placed,
    StagedTables& tables) {
  const Cluster& cluster = tables.cluster();
  const std::vector<int> node_of_device = cluster.node_of_device();
  SharedCores cores(cluster);
  int group = 0;
  for (std::size_t k = 0; k < strategy.stages.size(); ++k) {
    const OwnStage& stage = strategy.stages[k];
    for (int d = 0; d < stage.replicas(); ++d, ++group) {
      const LayerTable& table = tables.of(stage.way, stage.samples[at(d)], stage.recomputes);
      for (int t = 0; t < stage.way.degree; ++t) {
        const int node = node_of_device[at(stage.devices[at(d * stage.way.degree + t)])];
        const double compute = table.compute_seconds(
            cluster.nodes[at(node)].kind, stage.first_layer, stage.last_layer);
        cores.add(
            node,
            group,
            strategy.microbatches * compute,
            strategy.microbatches * tensor_seconds(table, stage, placed[k]));
      }
    }
  }
  return cores.seconds();
}

// Returns the price of a stage: the time of its slowest replica, the memory of its fullest.
StageCost price_stage(
    const StagedStrategy& strategy,
    int stage,
    const StageLinks& links,
    bool sends_between_nodes,
    StagedTables& tables) {
  Strategy order;
  order.pp = static_cast<int>(strategy.stages.size());
  order.schedule = strategy.schedule;
  const int held = in_flight(order, stage, strategy.microbatches);
  StageCost result;
  double fullest = -1;
  for (int d = 0; d < strategy.stages[at(stage)].replicas(); ++d) {
    const StageCost one =
        price_replica(strategy, stage, d, held, links, sends_between_nodes, tables);
    if (one.seconds() > result.seconds()) {
      result.compute_seconds = one.compute_seconds;
      result.tensor_seconds = one.tensor_seconds;
      result.waiting_seconds = one.waiting_seconds;
    }
    result.optimizer_seconds = std::max(result.optimizer_seconds, one.optimizer_seconds);
    result.parameters = one.parameters;
    result.in_flight = one.in_flight;
    if (one.needed_bytes / one.device_bytes > fullest) {
      fullest = one.needed_bytes / one.device_bytes;
      result.memory = one.memory;
      result.needed_bytes = one.needed_bytes;
      result.device_bytes = one.device_bytes;
    }
  }
  result.host_has_bytes = std::numeric_limits<double>::infinity();
  return result;
}

// Returns what of the sums of gradients is latency, as for uniform strategies of such models.
double messages(const StagedStrategy& strategy, StagedTables& tables) {
  double longest = 0;
  for (int k = 0; k < static_cast<int>(strategy.stages.size()); ++k) {
    const OwnStage& stage = strategy.stages[at(k)];
    const LayerTable& table = tables.of(stage.way, stage.samples.front(), stage.recomputes);
    longest = std::max(
        longest,
        message_seconds(
            alone(strategy, k),
            tables.cluster(),
            0,
            table.parameters(stage.first_layer, stage.last_layer),
            table.tensors(stage.first_layer, stage.last_layer),
            tables.constants()));
  }
  return longest;
}

} // namespace

const LayerTable& StagedTables::of(const TensorWay& way, int samples, bool recomputes) {
  auto& table = tables_[{way.degree, way.distribution, way.same_samples, samples, recomputes}];
  if (!table) {
    Strategy strategy;
    strategy.tp = way.degree;
    strategy.distribution = way.distribution;
    strategy.same_samples = way.same_samples;
    strategy.microbatch_size = samples;
    strategy.activation_checkpointing = recomputes;
    table = std::make_unique<LayerTable>(model_, cluster_, strategy, constants_);
  }
  return *table;
}

StageCost price_replica(
    const StagedStrategy& strategy,
    int stage,
    int replica,
    int in_flight,
    const StageLinks& links,
    bool sends_between_nodes,
    StagedTables& tables) {
  const OwnStage& own = strategy.stages[at(stage)];
  const Cluster& cluster = tables.cluster();
  const Constants& constants = tables.constants();
  const Strategy settings = alone(strategy, stage);
  const LayerTable& table = tables.of(own.way, own.samples[at(replica)], own.recomputes);
  const PlacementLinks placed = as_placement(links, sends_between_nodes);
  const int first = own.first_layer;
  const int last = own.last_layer;
  StageCost cost;
  cost.parameters = table.parameters(first, last);
  cost.in_flight = in_flight;
  cost.tensor_seconds = tensor_seconds(table, own, links);
  cost.device_bytes = std::numeric_limits<double>::infinity();
  cost.host_has_bytes = cost.device_bytes;
  const std::vector<int> node_of_device = cluster.node_of_device();
  for (int t = 0; t < own.way.degree; ++t) {
    const int device = own.devices[at(replica * own.way.degree + t)];
    const int kind = cluster.nodes[at(node_of_device[at(device)])].kind;
    const DeviceKind& of_kind = cluster.kinds[at(kind)];
    cost.compute_seconds = std::max(cost.compute_seconds, table.compute_seconds(kind, first, last));
    cost.waiting_seconds =
        std::max(cost.waiting_seconds, waiting_seconds(table, cluster, placed, settings, kind, 0));
    cost.optimizer_seconds = std::max(
        cost.optimizer_seconds,
        optimizer_seconds(
            cost.parameters, table.optimizer_bytes(cost.parameters), of_kind, settings, constants));
    cost.device_bytes = std::min(cost.device_bytes, of_kind.memory_bytes);
  }
  const HostPace pace = host_pace(stalls(cluster, placed), cost.waiting_seconds);
  cost.memory =
      table.memory(first, last, stage_state(settings, in_flight, strategy.microbatches, pace));
  cost.needed_bytes =
      (cost.memory.total() + constants.context_bytes) / usable_share(tables.model(), constants);
  return cost;
}

StageTransfer transfer_between(
    const OwnStage& from,
    const OwnStage& to,
    const NodeLinks& links,
    StagedTables& tables) {
  const Cluster& cluster = tables.cluster();
  const std::vector<int> node_of_device = cluster.node_of_device();
  const double behind = tables.of(from.way, 1, from.recomputes).cut_bytes(from.last_layer);
  const double ahead = tables.of(to.way, 1, to.recomputes).cut_bytes(from.last_layer);
  Flows forward(cluster, links, node_of_device);
  add_slices(from, to, behind, ahead, forward);
  Flows backward(cluster, links, node_of_device);
  add_slices(to, from, ahead, behind, backward);
  return {
      .forward = forward.seconds(tables.constants()),
      .backward = backward.seconds(tables.constants()),
      .between_nodes = forward.between_nodes()};
}

StrategyCost price(const StagedStrategy& strategy, StagedTables& tables) {
  const DescribedModel& model = tables.model();
  const Cluster& cluster = tables.cluster();
  const Constants& constants = tables.constants();
  TESSERA_CHECK(!model.returns_home, "stages of own widths are priced where none returns home");
  const int stages = static_cast<int>(strategy.stages.size());
  const NodeLinks links(cluster);
  std::vector<StageTransfer> transfers(at(stages));
  bool between_nodes = false;
  for (int k = 0; k + 1 < stages; ++k) {
    transfers[at(k)] =
        transfer_between(strategy.stages[at(k)], strategy.stages[at(k) + 1], links, tables);
    between_nodes = between_nodes || transfers[at(k)].between_nodes;
  }
  const std::vector<StageLinks> placed = place_groups(strategy, cluster, constants);
  StrategyCost cost;
  std::vector<double> parameters;
  std::vector<double> whole;
  std::vector<double> tied;
  double sum = 0;
  double most = 0;
  double longest = 0;
  double fullest = -1;
  int slowest = 0;
  for (int k = 0; k < stages; ++k) {
    const OwnStage& own = strategy.stages[at(k)];
    cost.stages.push_back(price_stage(strategy, k, placed[at(k)], between_nodes, tables));
    StageCost& stage = cost.stages.back();
    const StageTransfer& transfer = transfers[at(k)];
    stage.send_seconds = std::max(transfer.forward, transfer.backward);
    const LayerTable& table = tables.of(own.way, own.samples.front(), own.recomputes);
    parameters.push_back(stage.parameters);
    whole.push_back(table.whole_parameters(own.first_layer, own.last_layer));
    tied.push_back(table.tied_parameters(own.first_layer, own.last_layer));
    sum += stage.seconds();
    longest = std::max({longest, stage.seconds(), stage.send_seconds});
    cost.transfer_seconds += transfer.forward + transfer.backward;
    cost.optimizer_seconds = std::max(cost.optimizer_seconds, stage.optimizer_seconds);
    if (stage.seconds() > most) {
      most = stage.seconds();
      slowest = k;
    }
    if (stage.needed_bytes / stage.device_bytes > fullest) {
      fullest = stage.needed_bytes / stage.device_bytes;
      cost.fullest_stage = k;
    }
  }
  const StageCost& busiest = cost.stages[at(slowest)];
  cost.compute_seconds = strategy.microbatches * busiest.compute_seconds;
  cost.tensor_seconds = strategy.microbatches * busiest.tensor_seconds;
  cost.waiting_seconds = strategy.microbatches * busiest.waiting_seconds;
  const double pipeline = (strategy.microbatches - 1) * longest + sum;
  cost.bubble_seconds =
      pipeline - cost.compute_seconds - cost.tensor_seconds - cost.waiting_seconds;
  cost.shared_cores_seconds =
      std::max(0.0, shared_cores_seconds(strategy, placed, tables) - pipeline);
  cost.gradient_seconds =
      gradient_sync_seconds(strategy, cluster, parameters, whole, tied, constants) +
      (model.sized() != nullptr ? messages(strategy, tables) : 0);
  cost.stall_seconds = stall_seconds(
      cluster,
      {.sends_between_nodes = between_nodes, .stages = placed, .pipelines = {}, .kinds = {}},
      stages,
      strategy.microbatches);
  cost.seconds = pipeline + cost.shared_cores_seconds + cost.transfer_seconds +
                 cost.gradient_seconds + cost.optimizer_seconds + cost.stall_seconds;
  cost.seconds_range = seconds_range(model, cluster, cost.seconds);
  cost.memory_range = memory_range(model, cost.stages[at(cost.fullest_stage)].memory.total());
  return cost;
}

} // namespace tessera::cost
