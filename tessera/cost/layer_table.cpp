#include "tessera/cost/layer_table.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/cost/layer_rows.h"

namespace tessera::cost {

namespace {

constexpr double kMasterBytes = 4; // of an f32 weight

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

// As most_working, of a traced model: a layer works when those behind it have freed what they kept.
// All stages but the first work for another rank; in the first the gradients of layer 0's tail are
// held meanwhile.
std::vector<std::vector<double>> most_working_of_traced(const LayerRows& all) {
  const std::vector<LayerRow>& rows = all.layers;
  std::vector<std::vector<double>> result(rows.size());
  for (std::size_t first = 0; first < rows.size(); ++first) {
    double most = 0;
    std::array<double, 3> buffers = {};
    for (std::size_t i = first; i < rows.size(); ++i) {
      const bool defers = first > 0;
      const double freed = rows[i].kept_bytes - (defers ? rows[i].deferred_bytes : 0);
      const double working = defers  ? rows[i].deferring_bytes
                             : i > 0 ? rows[i].working_bytes + all.held_gradient_bytes
                                     : rows[i].working_bytes;
      most = std::max(i > first ? most - freed : 0, working);
      double all_buffers = 0;
      for (std::size_t b = 0; b < buffers.size(); ++b) {
        buffers[b] = std::max(buffers[b], rows[i].buffer_bytes[b]);
        all_buffers += buffers[b];
      }
      result[first].push_back(most + all_buffers);
    }
  }
  return result;
}

// What a forward keeps leaves for the host beside the layer that made it, and returns beside its
// backward, so neither is shorter than the transfer.
void add_offloading(const Cluster& cluster, bool recomputes, LayerRows& rows) {
  for (std::size_t kind = 0; kind < cluster.kinds.size(); ++kind) {
    const DeviceKind& device = cluster.kinds[kind];
    if (device.host_bytes_per_s == 0) {
      throw ConfigError(str(
          "cluster: devices.",
          device.name,
          ".host_gb_per_s: is not said, so offloading has no price; write the bandwidth between "
          "the device and its host's memory"));
    }
    for (LayerRow& row : rows.layers) {
      if (recomputes && !row.recomputed) {
        continue;
      }
      const double moved = row.kept_bytes / device.host_bytes_per_s;
      const double backward = row.seconds[kind] - row.forward_seconds[kind];
      row.forward_seconds[kind] = std::max(row.forward_seconds[kind], moved);
      row.seconds[kind] = row.forward_seconds[kind] + std::max(backward, moved);
    }
  }
}

LayerRows rows_of(
    const DescribedModel& model,
    const Cluster& cluster,
    const Strategy& strategy,
    const Constants& constants) {
  if (model.sized() != nullptr) {
    return sized_rows(model, cluster, strategy, constants);
  }
  return model.traced() != nullptr ? traced_rows(model, cluster, strategy)
                                   : measured_rows(model, cluster, strategy, constants);
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
      // AdamW keeps two f32 moments, and f32 master weights if the weights are half-precision.
      state_bytes_(
          model.optimizer_state_bytes.value_or(model.precision == Precision::kHalf ? 12.0 : 8.0)),
      returns_home_(model.returns_home),
      recomputes_(strategy.activation_checkpointing),
      sized_(model.sized() != nullptr),
      traced_(model.traced() != nullptr) {
  LayerRows rows = rows_of(model, cluster, strategy, constants);
  if (strategy.offload_activations) {
    add_offloading(cluster, strategy.activation_checkpointing, rows);
  }
  tail_ = std::move(rows.tail_seconds);
  tail_deferred_ = std::move(rows.tail_deferred_seconds);
  for (std::size_t kind = 0; kind < cluster.kinds.size(); ++kind) {
    forward_.push_back(
        prefix_sums(rows.layers, [kind](const auto& row) { return row.forward_seconds[kind]; }));
    compute_.push_back(
        prefix_sums(rows.layers, [kind](const auto& row) { return row.seconds[kind]; }));
    deferred_.push_back(prefix_sums(rows.layers, [kind](const auto& row) {
      return row.deferred_seconds.empty() ? 0 : row.deferred_seconds[kind];
    }));
    host_.push_back(prefix_sums(rows.layers, [kind](const auto& row) {
      return row.host_seconds.empty() ? 0 : row.host_seconds[kind];
    }));
  }
  cut_bytes_.push_back(0);
  for (const LayerRow& row : rows.layers) {
    cut_bytes_.push_back(row.output_bytes);
  }
  if (tensor_degree_ > 1) {
    traffic_ = TensorTraffic(cluster, tensor_degree_, rows);
  }
  parameters_ = prefix_sums(rows.layers, [](const auto& row) { return row.parameters; });
  whole_parameters_ =
      prefix_sums(rows.layers, [](const auto& row) { return row.whole_parameters; });
  kept_ = prefix_sums(rows.layers, [](const auto& row) { return row.kept_bytes; });
  leaving_ = prefix_sums(rows.layers, [this](const auto& row) {
    return recomputes_ && !row.recomputed ? 0 : row.kept_bytes;
  });
  logits_ = prefix_sums(rows.layers, [](const auto& row) { return row.logit_bytes; });
  collectives_ = prefix_sums(rows.layers, [](const auto& row) { return row.collectives; });
  tensors_ = prefix_sums(rows.layers, [](const auto& row) { return row.tensors; });
  gathered_ = prefix_sums(rows.layers, [](const auto& row) { return row.gathered_bytes; });
  most_working_ = traced_ ? most_working_of_traced(rows) : most_working(rows.layers);
  tail_working_ = rows.tail_working_bytes;
  between_ = rows.between_bytes;
  const std::vector<int> shared = model.shared_with();
  for (int i = 0; i < layers_; ++i) {
    if (shared[at(i)] >= 0) {
      ties_.push_back({i, shared[at(i)], rows.layers[at(shared[at(i)])].parameters});
    }
  }
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

double LayerTable::largest_layer(int first, int last) const {
  double largest = 0;
  for (int i = first; i < last; ++i) {
    largest = std::max(largest, parameters(i, i + 1));
  }
  return largest;
}

StageMemory LayerTable::memory(int first, int last, const StageState& state) const {
  const double count = parameters(first, last);
  StageMemory memory;
  const double copies = sized_ ? constants_.gradient_sum_bytes : constants_.gradient_copies_bytes;
  memory.weights = count * value_bytes_ / state.parameter_shards;
  memory.gradients = count * (value_bytes_ + copies) / state.parameter_shards;
  if (state.parameter_shards > 1) {
    const double largest = largest_layer(first, last);
    // The layer at work and the next one are there whole, and the gradients of one.
    memory.weights += 2 * largest * value_bytes_;
    memory.gradients += largest * value_bytes_;
    if (sized_ && value_bytes_ < kMasterBytes) {
      // What is divided are f32 weights, which the optimizer's state holds, and sums of their
      // gradients: values of 16 bits are there only whole, and a layer's gradients in f32 as well
      // while they are summed over replicas.
      memory.weights -= count * value_bytes_ / state.parameter_shards;
      memory.gradients -= count * value_bytes_ / state.parameter_shards;
      memory.gradients += largest * constants_.gradient_wire_bytes;
    }
  }
  memory.optimizer = optimizer_bytes(count) / state.optimizer_shards;
  if (state.offloads_optimizer) {
    // The device holds the state of the layer that it updates, and of the one that is on its way.
    memory.host += memory.optimizer;
    memory.optimizer = std::min(
        memory.optimizer, 2 * optimizer_bytes(largest_layer(first, last)) / state.optimizer_shards);
  }
  const double kept = kept_[at(last)] - kept_[at(first)];
  memory.activations = kept * state.in_flight;
  if (state.offloads_activations) {
    const double leaving = (leaving_[at(last)] - leaving_[at(first)]) * state.in_flight;
    memory.host += leaving;
    memory.activations += near_bytes(first, last, state) - leaving;
  }
  memory.activations += (gathered_[at(last)] - gathered_[at(first)]) * held(state);
  memory.working = most_working_[at(first)][at(last - first - 1)];
  if (first == 0) {
    memory.working = std::max(memory.working, tail_working_) + between_ * (state.backwards - 1);
  }
  memory.logits = logits_[at(last)] - logits_[at(first)];
  if (traced_ && state.parameter_shards == 1) {
    memory.gradients = gradient_bytes(first, last, state, kept, memory.working);
  }
  return memory;
}

// Returns of how many microbatches the gathered activations are still held. A communicator holds
// what it gathered until the device is done with it, so a host that is ahead holds those of all,
// one that is level gives back those of the microbatches at work, and one that stalls holds none.
int LayerTable::held(const StageState& state) {
  switch (state.host) {
    case HostPace::kAhead:
      return state.in_flight;
    case HostPace::kLevel:
      return std::max(0, state.in_flight - 2);
    case HostPace::kStalled:
      return 0;
  }
  return 0;
}

double LayerTable::gradient_bytes(
    int first,
    int last,
    const StageState& state,
    double kept,
    double working) const {
  const double bytes = value_bytes_ + constants_.gradient_copies_bytes;
  const double all = parameters(first, last) * bytes;
  const double standing =
      state.replicas ? all : std::min(all, whole_parameters(first, last) * bytes);
  const double coming = all - standing;
  if (state.had_backward) {
    return all;
  }
  if (state.in_flight == 0) {
    return standing;
  }
  // After the first backward one microbatch less is held, and all gradients; if another is left, it
  // is at work beside them.
  return standing + std::max(0.0, coming - kept - (state.in_flight > 1 ? 0 : working));
}

// With whole forwards the device holds what the microbatch at work keeps, and the one that leaves
// or returns. What recomputed layers keep begins to return some pipeline tasks early, half of which
// are backwards; with one stage as many layers early.
double LayerTable::near_bytes(int first, int last, const StageState& state) const {
  constexpr int kHorizon = 4; // the default of activation_loading_horizon
  if (recomputes_ && state.by_layer) {
    // Those that are on their way back, the one at work and the one that leaves.
    constexpr int kNear = kHorizon + 2;
    double most = 0;
    for (int i = first; i < last; ++i) {
      most = std::max(most, leaving_[at(std::min(i + kNear, last))] - leaving_[at(i)]);
    }
    return most;
  }
  const int near = recomputes_ ? kHorizon / 2 + 1 : 2;
  return (leaving_[at(last)] - leaving_[at(first)]) * std::min(state.in_flight, near);
}

double usable_share(const DescribedModel& model, const Constants& constants) {
  return model.sized() != nullptr ? constants.packed_memory_share : constants.usable_memory_share;
}

} // namespace tessera::cost
