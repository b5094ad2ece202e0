#include "tessera/cost/strategy_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/base/index.h"
#include "tessera/cost/gradient_overlap.h"
#include "tessera/cost/shared_cores.h"

namespace tessera::cost {

namespace {

// Every part of an estimate is made from these.
struct Inputs {
  const DescribedModel& model;
  const Cluster& cluster;
  const Strategy& strategy;
  const LayerTable& table;
  const PlacementLinks& links;
  const Constants& constants;
  int microbatches;
};

// Returns the sum of what the stages of a pipeline rank have: one, or several in turns.
template <typename OfLayers>
double over_stages(const Strategy& strategy, int rank, const OfLayers& of_layers) {
  double sum = 0;
  for (int stage = rank; stage < strategy.stages(); stage += strategy.pp) {
    const auto [first, last] = strategy.layers_of(stage);
    sum += of_layers(first, last);
  }
  return sum;
}

double compute_seconds(const Inputs& inputs, int kind, int rank) {
  return over_stages(inputs.strategy, rank, [&](int first, int last) {
    return inputs.table.compute_seconds(kind, first, last);
  });
}

// Returns the seconds of a microbatch's backward in which no other rank waits: of stage 0 those of
// the tail alone.
double deferred_seconds(const Inputs& inputs, int kind, int rank) {
  if (inputs.strategy.pp == 1) {
    return 0;
  }
  const double deferred = over_stages(inputs.strategy, rank, [&](int first, int last) {
    return first == 0 ? 0 : inputs.table.deferred_seconds(kind, first, last);
  });
  return deferred + (rank == 0 ? inputs.table.tail_deferred_seconds(kind) : 0);
}

double waiting_seconds(const Inputs& inputs, int kind, int rank) {
  double sum = 0;
  for (int stage = rank; stage < inputs.strategy.stages(); stage += inputs.strategy.pp) {
    sum +=
        waiting_seconds(inputs.table, inputs.cluster, inputs.links, inputs.strategy, kind, stage);
  }
  return sum;
}

// Returns the most nodes that a tensor-parallel group of a stage spans.
int widest(const StageLinks& stage) {
  int nodes = 1;
  for (const Span& span : stage.tensor_nodes) {
    nodes = std::max(nodes, span.count);
  }
  return nodes;
}

// Adds the memory of another stage of the same rank, of which one runs at a time.
void join(const StageMemory& other, StageMemory& memory) {
  memory.weights += other.weights;
  memory.gradients += other.gradients;
  memory.optimizer += other.optimizer;
  memory.activations += other.activations;
  memory.host += other.host;
  if (other.working + other.logits > memory.working + memory.logits) {
    memory.working = other.working;
    memory.logits = other.logits;
  }
}

StageCost price_stage(const Inputs& inputs, int rank) {
  const auto& [model, cluster, strategy, table, links, constants, microbatches] = inputs;
  StageCost cost;
  const StageLinks& place = links.stages[at(rank)];
  for (const int kind : links.kinds[at(rank)]) {
    cost.waiting_seconds = std::max(cost.waiting_seconds, waiting_seconds(inputs, kind, rank));
  }
  for (int stage = rank; stage < strategy.stages(); stage += strategy.pp) {
    const auto [first, last] = strategy.layers_of(stage);
    cost.parameters += table.parameters(first, last);
    const PassSeconds tensor = table.tensor_seconds(first, last, place);
    cost.tensor_seconds += tensor.forward + tensor.backward;
    if (stage == 0) {
      const PassSeconds tail = table.tail_tensor_seconds(place);
      cost.tensor_seconds += tail.forward + tail.backward;
    }
    cost.send_seconds +=
        send_seconds(links, strategy, stage, table.cut_bytes(last), table.returns_home());
    cost.in_flight = in_flight(strategy, stage, microbatches);
    const HostPace pace = host_pace(stalls(cluster, links), cost.waiting_seconds);
    join(
        table.memory(first, last, stage_state(strategy, cost.in_flight, microbatches, pace)),
        cost.memory);
  }
  cost.host_bytes = cost.memory.host;
  cost.needed_bytes =
      (cost.memory.total() + constants.context_bytes) / usable_share(model, constants);
  cost.device_bytes = std::numeric_limits<double>::infinity();
  cost.host_has_bytes = std::numeric_limits<double>::infinity();
  for (const int kind : links.kinds[at(rank)]) {
    const DeviceKind& device = cluster.kinds[at(kind)];
    cost.compute_seconds = std::max(cost.compute_seconds, compute_seconds(inputs, kind, rank));
    cost.optimizer_seconds = std::max(
        cost.optimizer_seconds,
        optimizer_seconds(
            cost.parameters, table.optimizer_bytes(cost.parameters), device, strategy, constants));
    cost.device_bytes = std::min(cost.device_bytes, device.memory_bytes);
    cost.host_has_bytes = std::min(cost.host_has_bytes, device.host_memory_bytes);
  }
  return cost;
}

// Returns the most seconds that a node needs whose ranks share cores; `stages` are priced.
double shared_cores_seconds(const Inputs& inputs, const std::vector<StageCost>& stages) {
  const Cluster& cluster = inputs.cluster;
  const Strategy& strategy = inputs.strategy;
  SharedCores cores(cluster);
  const std::vector<int> node_of_device = cluster.node_of_device();
  for (int rank = 0; rank < strategy.devices(); ++rank) {
    const int node = node_of_device[at(strategy.device_of_rank[at(rank)])];
    const int group = rank / strategy.tp;
    const int pipeline_rank = group / strategy.dp;
    cores.add(
        node,
        group,
        inputs.microbatches * compute_seconds(inputs, cluster.nodes[at(node)].kind, pipeline_rank),
        inputs.microbatches * stages[at(pipeline_rank)].tensor_seconds);
  }
  return cores.seconds();
}

// Adds the first two lines of price's formula, for the slowest pipeline.
void add_pipeline_seconds(const Inputs& inputs, StrategyCost& cost) {
  const auto& [model, cluster, strategy, table, links, constants, microbatches] = inputs;
  double transfer = 0;
  double slowest_send = 0;
  for (const StageCost& stage : cost.stages) {
    transfer += 2 * stage.send_seconds;
    slowest_send = std::max(slowest_send, stage.send_seconds);
  }
  double slowest = -1;
  for (const std::vector<int>& kinds : links.pipelines) {
    double sum = 0;
    double deferred = 0; // what the drain does not wait for
    double most = 0;
    double most_compute = 0;
    double most_tensor = 0;
    double most_waiting = 0;
    for (int k = 0; k < strategy.pp; ++k) {
      const double compute = compute_seconds(inputs, kinds[at(k)], k);
      const double tensor = cost.stages[at(k)].tensor_seconds;
      const double waiting = waiting_seconds(inputs, kinds[at(k)], k);
      sum += compute + tensor + waiting;
      deferred += deferred_seconds(inputs, kinds[at(k)], k);
      if (compute + tensor + waiting > most) {
        most = compute + tensor + waiting;
        most_waiting = waiting;
        most_compute = compute;
        most_tensor = tensor;
      }
    }
    const int turns = strategy.stages_per_rank;
    const double period = std::max(most, slowest_send);
    // In turns one of them fills and drains the pipeline, but a microbatch still passes all stages.
    const double filled = turns == 1 ? (microbatches - 1) * period + sum
                                     : std::max(
                                           microbatches * period + (sum - most) / turns,
                                           (microbatches - 1) * period / turns + sum);
    const double seconds = deferred > 0 ? std::max(filled - deferred, microbatches * most) : filled;
    if (seconds > slowest) {
      slowest = seconds;
      cost.compute_seconds = microbatches * most_compute;
      cost.tensor_seconds = microbatches * most_tensor;
      cost.waiting_seconds = microbatches * most_waiting;
      // Not below 0, where the others' sum is rounded up.
      cost.bubble_seconds = std::max(
          0.0, seconds - cost.compute_seconds - cost.tensor_seconds - cost.waiting_seconds);
    }
  }
  const bool shared = std::any_of(
      cluster.nodes.begin(), cluster.nodes.end(), [](const Node& node) { return node.cores > 0; });
  if (shared) {
    const double bound = shared_cores_seconds(inputs, cost.stages);
    cost.shared_cores_seconds = std::max(0.0, bound - slowest);
    slowest += cost.shared_cores_seconds;
  }
  cost.transfer_seconds = transfer;
  cost.seconds = slowest + transfer;
}

// Adds what replicas exchange: their gradients, and if they divide their parameters, these too,
// beside the computation of every microbatch.
void add_exchange_seconds(const Inputs& inputs, const GradientLoad& load, StrategyCost& cost) {
  const auto& [model, cluster, strategy, table, links, constants, microbatches] = inputs;
  const double sync =
      gradient_sync_seconds(strategy, cluster, load.parameters, load.whole, load.tied, constants);
  if (strategy.shard_parameters) {
    // Parameters are gathered for a forward and for its backward, gradients scattered behind it,
    // each of which sends half as much as an all-reduce.
    const double value = (model.precision == Precision::kHalf ? 2.0 : 4.0);
    const double wire = constants.gradient_wire_bytes;
    const double exchanged = sync * (2 * value + wire) / (2 * wire);
    const double busy = cost.compute_seconds + cost.tensor_seconds + cost.waiting_seconds;
    const double layers = static_cast<double>(model.layers.size());
    cost.gradient_seconds =
        std::max(microbatches * exchanged - busy, exchanged / std::max(1.0, layers));
    return;
  }
  cost.gradient_seconds = strategy.overlap_gradients
                              ? exposed_gradient_seconds(strategy, cluster, load, constants)
                              : sync;
  if (model.sized() != nullptr) {
    double longest = 0;
    for (int k = 0; k < strategy.pp; ++k) {
      const double tensors = over_stages(
          strategy, k, [&](int first, int last) { return inputs.table.tensors(first, last); });
      longest = std::max(
          longest,
          message_seconds(strategy, cluster, k, load.parameters[at(k)], tensors, constants));
    }
    cost.gradient_seconds += longest;
  }
}

} // namespace

double waiting_seconds(
    const LayerTable& table,
    const Cluster& cluster,
    const PlacementLinks& links,
    const Strategy& strategy,
    int kind,
    int stage) {
  return waiting_seconds(
      table, cluster, links, strategy.tp, kind, stage % strategy.pp, strategy.layers_of(stage));
}

double waiting_seconds(
    const LayerTable& table,
    const Cluster& cluster,
    const PlacementLinks& links,
    int tensor_degree,
    int kind,
    int rank,
    std::pair<int, int> layers) {
  const auto [first, last] = layers;
  const StageLinks& place = links.stages[at(rank)];
  double host = table.host_seconds(kind, first, last);
  if (host == 0) {
    return 0;
  }
  if (links.sends_between_nodes) {
    const double network = cluster.busy_network_start_seconds;
    const bool over_nodes = network > 0 && widest(place) > 1;
    host += table.collectives(first, last) * tensor_degree *
            (over_nodes ? network : cluster.busy_start_seconds);
  }
  const PassSeconds tensor = table.tensor_seconds(first, last, place);
  return std::max(
      0.0, host - table.compute_seconds(kind, first, last) - tensor.forward - tensor.backward);
}

bool stalls(const Cluster& cluster, const PlacementLinks& links) {
  const bool wide = std::any_of(links.stages.begin(), links.stages.end(), [&](const auto& stage) {
    return widest(stage) >= cluster.stalling_group_nodes;
  });
  return cluster.stalls() ||
         (cluster.stalling_group_nodes > 0 && links.sends_between_nodes && wide);
}

HostPace host_pace(bool stalls, double waiting_seconds) {
  if (stalls) {
    return HostPace::kStalled;
  }
  return waiting_seconds > 0 ? HostPace::kLevel : HostPace::kAhead;
}

double
stall_seconds(const Cluster& cluster, const PlacementLinks& links, int stages, int microbatches) {
  if (!stalls(cluster, links)) {
    return 0;
  }
  const int messages = stages > 2 ? 4 : 2;
  return cluster.stall_seconds * (messages * microbatches + 2 * (stages - 1));
}

// Of the microbatches in flight; without a pipeline each backward runs to its end.
int backwards_begun(const Strategy& strategy, int in_flight) {
  constexpr int kAhead = 2; // of the stages, by default of active_microbatches
  return strategy.pp == 1 ? 1 : std::clamp(in_flight, 1, strategy.pp + kAhead);
}

StageState stage_state(const Strategy& strategy, int in_flight, int microbatches, HostPace host) {
  return {
      .in_flight = in_flight,
      .optimizer_shards = strategy.shard_optimizer_state ? strategy.dp : 1,
      .parameter_shards = strategy.shard_parameters ? strategy.dp : 1,
      .host = host,
      .offloads_optimizer = strategy.offload_optimizer_state,
      .offloads_activations = strategy.offload_activations,
      .replicas = strategy.dp > 1,
      .backwards = backwards_begun(strategy, in_flight),
      .had_backward = microbatches > in_flight,
      .by_layer = strategy.pp == 1};
}

double optimizer_seconds(
    double parameters,
    double state_bytes,
    const DeviceKind& kind,
    const Strategy& strategy,
    const Constants& constants) {
  const int shards = strategy.shard_optimizer_state ? strategy.dp : 1;
  const double bytes_per_s = kind.update_bytes_per_s > 0
                                 ? kind.update_bytes_per_s
                                 : kind.memory_bytes_per_s * constants.memory_efficiency;
  double seconds = 0;
  if (bytes_per_s > 0) {
    seconds = parameters * constants.optimizer_traffic_bytes / bytes_per_s / shards;
  }
  if (strategy.offload_optimizer_state) {
    if (kind.host_bytes_per_s == 0) {
      throw ConfigError(str(
          "cluster: devices.",
          kind.name,
          ".host_gb_per_s: is not said, so offloading has no price; write the bandwidth between "
          "the device and its host's memory"));
    }
    seconds = std::max(seconds, state_bytes / shards / kind.host_bytes_per_s);
  }
  return seconds;
}

bool runs_one_at_a_time(const Strategy& strategy) {
  return strategy.stages() == 1 && strategy.schedule != Schedule::kCustom;
}

int in_flight(const Strategy& strategy, int stage, int microbatches) {
  if (runs_one_at_a_time(strategy)) {
    return 1;
  }
  if (strategy.schedule != Schedule::kInterleaved) {
    return microbatches;
  }
  return std::min(
      microbatches,
      strategy.active_microbatches > 0 ? strategy.active_microbatches : strategy.pp - stage);
}

StrategyCost price(
    const DescribedModel& model,
    const Cluster& cluster,
    const Strategy& strategy,
    const LayerTable& table,
    const PlacementLinks& links,
    const Constants& constants) {
  const int microbatches = strategy.microbatches(model.global_batch_size);
  return price(model, cluster, strategy, table, links, constants, microbatches);
}

StrategyCost price(
    const DescribedModel& model,
    const Cluster& cluster,
    const Strategy& strategy,
    const LayerTable& table,
    const PlacementLinks& links,
    const Constants& constants,
    int microbatches) {
  const Inputs inputs = {model, cluster, strategy, table, links, constants, microbatches};
  StrategyCost cost;
  GradientLoad load;
  double fullest = -1;
  for (int k = 0; k < strategy.pp; ++k) {
    cost.stages.push_back(price_stage(inputs, k));
    const StageCost& stage = cost.stages.back();
    load.parameters.push_back(stage.parameters);
    load.whole.push_back(over_stages(
        strategy, k, [&](int first, int last) { return table.whole_parameters(first, last); }));
    load.tied.push_back(over_stages(
        strategy, k, [&](int first, int last) { return table.tied_parameters(first, last); }));
    cost.optimizer_seconds = std::max(cost.optimizer_seconds, stage.optimizer_seconds);
    if (stage.needed_bytes / stage.device_bytes > fullest) {
      fullest = stage.needed_bytes / stage.device_bytes;
      cost.fullest_stage = k;
    }
    double backward = std::numeric_limits<double>::infinity();
    for (const int kind : links.kinds[at(k)]) {
      backward = std::min(backward, over_stages(strategy, k, [&, kind](int first, int last) {
                            return table.compute_seconds(kind, first, last) -
                                   table.forward_seconds(kind, first, last);
                          }));
    }
    load.backward_seconds.push_back(backward);
  }
  add_pipeline_seconds(inputs, cost);
  add_exchange_seconds(inputs, load, cost);
  cost.stall_seconds =
      stall_seconds(cluster, links, strategy.pp, microbatches * strategy.stages_per_rank);
  cost.seconds += cost.gradient_seconds + cost.optimizer_seconds + cost.stall_seconds;
  cost.seconds_range = seconds_range(model, cluster, cost.seconds);
  cost.memory_range = memory_range(model, cost.stages[at(cost.fullest_stage)].memory.total());
  return cost;
}

} // namespace tessera::cost
