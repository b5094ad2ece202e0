#include "tessera/cost/layer_table.h"

#include <algorithm>
#include <utility>

#include "tessera/cost/layer_rows.h"

namespace tessera::cost {

namespace {

template <typename Value>
std::vector<double> prefix_sums(const std::vector<LayerRow>& rows, Value value) {
  std::vector<double> sums(rows.size() + 1, 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    sums[i + 1] = sums[i] + value(rows[i]);
  }
  return sums;
}

// Returns [first][length - 1]: the largest working_bytes of a run of layers.
std::vector<std::vector<double>> most_working(const std::vector<LayerRow>& rows) {
  std::vector<std::vector<double>> result(rows.size());
  for (std::size_t first = 0; first < rows.size(); ++first) {
    double most = 0;
    for (std::size_t i = first; i < rows.size(); ++i) {
      most = std::max(most, rows[i].working_bytes);
      result[first].push_back(most);
    }
  }
  return result;
}

} // namespace

LayerTable::LayerTable(
    const DescribedModel& model,
    const Cluster& cluster,
    const Strategy& strategy,
    const Constants& constants)
    : constants_(constants),
      layers_(static_cast<int>(model.layers.size())),
      tensor_degree_(strategy.tp),
      value_bytes_(value_bytes(model.precision)),
      returns_home_(model.returns_home) {
  LayerRows rows = model.traced() != nullptr ? traced_rows(model, cluster, strategy)
                                             : measured_rows(model, cluster, strategy, constants);
  tail_ = std::move(rows.tail_seconds);
  for (std::size_t kind = 0; kind < cluster.kinds.size(); ++kind) {
    forward_.push_back(
        prefix_sums(rows.layers, [kind](const auto& row) { return row.forward_seconds[kind]; }));
    compute_.push_back(
        prefix_sums(rows.layers, [kind](const auto& row) { return row.seconds[kind]; }));
  }
  cut_bytes_.push_back(0);
  for (const LayerRow& row : rows.layers) {
    cut_bytes_.push_back(row.output_bytes);
  }
  if (tensor_degree_ > 1) {
    add_collectives(cluster, rows);
  }
  parameters_ = prefix_sums(rows.layers, [](const auto& row) { return row.parameters; });
  whole_parameters_ =
      prefix_sums(rows.layers, [](const auto& row) { return row.whole_parameters; });
  kept_ = prefix_sums(rows.layers, [](const auto& row) { return row.kept_bytes; });
  logits_ = prefix_sums(rows.layers, [](const auto& row) { return row.logit_bytes; });
  most_working_ = most_working(rows.layers);
  const std::vector<int> shared = model.shared_with();
  for (int i = 0; i < layers_; ++i) {
    if (shared[at(i)] >= 0) {
      ties_.push_back({i, shared[at(i)], rows.layers[at(shared[at(i)])].parameters});
    }
  }
}

Traffic LayerTable::traffic_of(
    const std::vector<TensorCollective>& collectives,
    const Cluster& cluster,
    int nodes) {
  Traffic traffic;
  for (const TensorCollective& one : collectives) {
    const double measured =
        cluster.collective_seconds(one.operation, one.ranks, std::min(nodes, one.ranks), one.bytes);
    if (measured > 0) {
      traffic.seconds += one.times * measured;
      continue;
    }
    const Traffic ring = ring_traffic(one.operation, one.ranks, one.bytes);
    traffic.wire_bytes += one.times * ring.wire_bytes;
    traffic.steps += one.times * ring.steps;
  }
  return traffic;
}

void LayerTable::add_collectives(const Cluster& cluster, const LayerRows& rows) {
  const int most = std::min(tensor_degree_, static_cast<int>(cluster.nodes.size()));
  for (int nodes = 1; nodes <= most; ++nodes) {
    std::vector<PassTraffic> sums(1);
    const auto add = [&](const PassCollectives& exchanged) {
      PassTraffic sum = sums.back();
      sum.forward.add(traffic_of(exchanged.forward, cluster, nodes));
      sum.backward.add(traffic_of(exchanged.backward, cluster, nodes));
      sums.push_back(sum);
    };
    for (const LayerRow& row : rows.layers) {
      add(row.exchanged);
    }
    add(rows.tail_exchanged);
    traffic_.push_back(std::move(sums));
  }
}

PassSeconds LayerTable::placed(const PassTraffic& from, const PassTraffic& to, double bytes_per_s)
    const {
  const auto seconds = [&](const Traffic& traffic) {
    return traffic.seconds_at(bytes_per_s, constants_.link_latency_seconds);
  };
  return {seconds(to.forward - from.forward), seconds(to.backward - from.backward)};
}

PassSeconds LayerTable::tensor_seconds(int first, int last, int nodes, double bytes_per_s) const {
  if (traffic_.empty()) {
    return {};
  }
  const auto& sums = traffic_[at(nodes - 1)];
  return placed(sums[at(first)], sums[at(last)], bytes_per_s);
}

PassSeconds LayerTable::tail_tensor_seconds(int nodes, double bytes_per_s) const {
  if (traffic_.empty()) {
    return {};
  }
  const auto& sums = traffic_[at(nodes - 1)];
  return placed(sums[at(layers_)], sums[at(layers_) + 1], bytes_per_s);
}

double LayerTable::parameters(int first, int last) const {
  double sum = parameters_[at(last)] - parameters_[at(first)];
  for (const Tie& tie : ties_) {
    const bool here = tie.layer >= first && tie.layer < last;
    const bool there = tie.with >= first && tie.with < last;
    if (here && !there) {
      sum += tie.parameters;
    }
  }
  return sum;
}

double LayerTable::tied_parameters(int first, int last) const {
  double sum = 0;
  for (const Tie& tie : ties_) {
    const bool here = tie.layer >= first && tie.layer < last;
    const bool there = tie.with >= first && tie.with < last;
    if (here != there) {
      sum += tie.parameters;
    }
  }
  return sum;
}

StageMemory LayerTable::memory(int first, int last, const StageState& state) const {
  const double count = parameters(first, last);
  const bool half = value_bytes_ == 2;
  StageMemory memory;
  memory.weights = count * value_bytes_;
  memory.gradients = count * (value_bytes_ + constants_.gradient_copies_bytes);
  // Two f32 moments, and f32 master weights if the weights are half-precision.
  memory.optimizer = count * (half ? 12 : 8) / state.optimizer_shards;
  memory.activations = (kept_[at(last)] - kept_[at(first)]) * state.in_flight;
  memory.working = most_working_[at(first)][at(last - first - 1)];
  memory.logits = logits_[at(last)] - logits_[at(first)];
  return memory;
}

double usable_bytes(const DeviceKind& kind, const Constants& constants) {
  return kind.memory_bytes * constants.usable_memory_share - constants.context_bytes;
}

} // namespace tessera::cost
