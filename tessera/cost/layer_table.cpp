#include "tessera/cost/layer_table.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::cost {

namespace {

bool is_transformer(const Layer& layer) {
  return layer.kind == "transformer_layer";
}

double measured(const Layer& layer, const std::string& device, int degree) {
  const auto by_device = layer.forward_seconds_per_sample.find(device);
  if (by_device == layer.forward_seconds_per_sample.end()) {
    throw ConfigError(
        str("model: layer \"",
            layer.name,
            "\" was not measured on device \"",
            device,
            "\", which the cluster has; add forward_seconds_per_sample.",
            device));
  }
  const auto by_degree = by_device->second.find(degree);
  if (by_degree == by_device->second.end()) {
    throw ConfigError(
        str("model: layer \"",
            layer.name,
            "\" was not measured at tensor-parallel degree ",
            degree,
            " on device \"",
            device,
            "\"; add it or choose another degree"));
  }
  return by_degree->second;
}

// Elements of the attention scores of one sample, and how many ranks they can
// be divided over.
struct Scores {
  double elements = 0;
  double divisor = 1;
};

Scores scores_of(
    const DescribedModel& model,
    const Layer& layer,
    const Cluster& cluster,
    int tensor_degree,
    double score_bytes) {
  Scores scores;
  const auto elements = static_cast<double>(layer.output_elements_per_sample);
  if (model.sequence_length > 0 && model.num_attention_heads > 0) {
    const auto s = static_cast<double>(model.sequence_length);
    const auto heads = static_cast<double>(model.num_attention_heads);
    scores.elements = heads * s * s;
    scores.divisor = std::min<double>(tensor_degree, heads);
    return scores;
  }
  // Twelve squares of the hidden size are the parameters of a layer; one head,
  // since none is stated.
  const double hidden = std::sqrt(static_cast<double>(layer.parameters) / 12.0);
  const double s = hidden > 0 ? elements / hidden : 0;
  scores.elements = s * s;
  // What is kept was written during the measured forward, so attention that
  // is not full (windows) cannot have kept more than the memory could take.
  for (const DeviceKind& kind : cluster.kinds) {
    if (kind.memory_bytes_per_s > 0) {
      const double written = measured(layer, kind.name, 1) * kind.memory_bytes_per_s;
      scores.elements = std::min(scores.elements, written / score_bytes);
    }
  }
  return scores;
}

std::vector<double> prefix_sums(const std::vector<double>& values) {
  std::vector<double> sums(values.size() + 1, 0);
  for (std::size_t i = 0; i < values.size(); ++i) {
    sums[i + 1] = sums[i] + values[i];
  }
  return sums;
}

} // namespace

LayerTable::LayerTable(
    const DescribedModel& model,
    const Cluster& cluster,
    const Strategy& strategy,
    const Constants& constants)
    : constants_(constants),
      divided_(
          model.traced()
              ? model.divided_in({strategy.tp, strategy.distribution, strategy.same_samples})
              : nullptr),
      layers_(static_cast<int>(model.layers.size())),
      tensor_degree_(strategy.tp),
      microbatch_size_(strategy.microbatch_size),
      value_bytes_(model.precision == Precision::kHalf ? 2 : 4),
      returns_home_(model.returns_home) {
  const int tensor_degree = strategy.tp;
  const bool activation_checkpointing = strategy.activation_checkpointing;
  for (const DeviceKind& kind : cluster.kinds) {
    if (model.traced()) {
      add_traced_layers(model, kind, activation_checkpointing);
    } else {
      add_measured_layers(model, kind, activation_checkpointing);
    }
  }
  // A traced model was traced as one rank holds it.
  const double tp = model.traced() ? 1 : tensor_degree;
  const std::vector<Layer>& layers = divided_ != nullptr ? divided_->layers : model.layers;
  std::vector<double> parameters, whole, kept, logits, working;
  std::vector<PassCollectives> of_layers;
  cut_bytes_.push_back(0);
  for (const Layer& layer : layers) {
    const bool transformer = is_transformer(layer);
    const auto elements = static_cast<double>(layer.output_elements_per_sample) * microbatch_size_;
    const double bytes = elements * value_bytes_;
    cut_bytes_.push_back(bytes);
    PassCollectives& exchanged = of_layers.emplace_back();
    if (transformer && tensor_degree > 1) {
      // Two blocks, each all-reduced in forward, backward and recomputation.
      exchanged.forward = {{"all_reduce", tensor_degree, bytes, 2}};
      exchanged.backward = {{"all_reduce", tensor_degree, bytes, activation_checkpointing ? 4 : 2}};
    }
    const auto size = layer.collectives.find(strategy.microbatch_size);
    if (size != layer.collectives.end()) {
      exchanged = size->second;
      if (activation_checkpointing && !parameters.empty()) {
        exchanged.backward.insert(
            exchanged.backward.end(), exchanged.forward.begin(), exchanged.forward.end());
      }
    }
    parameters.push_back(static_cast<double>(layer.parameters) / tp);
    whole.push_back(static_cast<double>(layer.whole_parameters));
    const bool head =
        model.traced() || layer.kind == "lm_head" ||
        (model.vocabulary_size > 0 && model.sequence_length > 0 &&
         layer.output_elements_per_sample == model.vocabulary_size * model.sequence_length);
    // The head's copies of logits are counted once, at the head itself.
    logits.push_back(
        layer.kind == "lm_head" && !model.traced() ? constants.logit_bytes * elements / tp : 0);
    double keeps = head ? 0 : 2 * bytes; // with the buffer that it came in
    double works = 0;
    if (model.traced()) {
      const double all = layer.kept_bytes_per_sample * microbatch_size_;
      const bool recomputed = activation_checkpointing && !kept.empty();
      keeps = recomputed ? bytes : all;
      works = recomputed ? all : 0;
    } else if (transformer) {
      const Scores scores = scores_of(model, layer, cluster, tensor_degree, constants.score_bytes);
      const double kept_scores =
          constants.score_bytes * scores.elements * microbatch_size_ / scores.divisor;
      works = elements * (constants.whole_working_bytes + constants.divided_working_bytes / tp) +
              kept_scores;
      if (!activation_checkpointing) {
        // Korthikanti et al. 2022, section 4.1: 10 + 24/t bytes an element.
        keeps += elements * (10 + 24 / tp) * value_bytes_ / 2 + kept_scores;
      }
    }
    kept.push_back(keeps);
    working.push_back(works);
  }
  std::vector<const PassCollectives*> in_order;
  in_order.reserve(of_layers.size() + 1);
  for (const PassCollectives& one : of_layers) {
    in_order.push_back(&one);
  }
  const PassCollectives none;
  in_order.push_back(
      divided_ != nullptr && divided_->tail_collectives.count(strategy.microbatch_size) != 0
          ? &divided_->tail_collectives.at(strategy.microbatch_size)
          : &none);
  if (tensor_degree > 1) {
    add_collectives(cluster, in_order);
  }
  parameters_ = prefix_sums(parameters);
  whole_parameters_ = prefix_sums(whole);
  kept_ = prefix_sums(kept);
  logits_ = prefix_sums(logits);
  most_working_.resize(working.size());
  for (std::size_t first = 0; first < working.size(); ++first) {
    double most = 0;
    for (std::size_t i = first; i < working.size(); ++i) {
      most = std::max(most, working[i]);
      most_working_[first].push_back(most);
    }
  }
  const std::vector<int> shared = model.shared_with();
  for (int i = 0; i < layers_; ++i) {
    if (shared[at(i)] >= 0) {
      ties_.push_back(
          {i, shared[at(i)], static_cast<double>(model.layers[at(shared[at(i)])].parameters) / tp});
    }
  }
}

void LayerTable::add_measured_layers(
    const DescribedModel& model,
    const DeviceKind& kind,
    bool activation_checkpointing) {
  std::vector<double> forward;
  std::vector<double> total;
  for (const Layer& layer : model.layers) {
    const bool transformer = is_transformer(layer);
    const double recomputed = transformer && activation_checkpointing ? 1.0 : 0.0;
    const double seconds = measured(layer, kind.name, transformer ? 1 : tensor_degree_);
    const auto said = layer.fixed_seconds.find(kind.name);
    const double host = std::min(
        seconds,
        said != layer.fixed_seconds.end() ? said->second
        : transformer                     ? constants_.transformer_host_seconds
                                          : constants_.other_host_seconds);
    const double work = (seconds - host) * microbatch_size_ / (transformer ? tensor_degree_ : 1.0);
    forward.push_back(host + work);
    // The host starts the backward's operators without the interpreter: about
    // one forward's time for its twofold work.
    total.push_back(host * (2 + recomputed) + work * (3 + recomputed));
  }
  forward_.push_back(prefix_sums(forward));
  compute_.push_back(prefix_sums(total));
}

void LayerTable::add_traced_layers(
    const DescribedModel& model,
    const DeviceKind& kind,
    bool activation_checkpointing) {
  const int size = static_cast<int>(microbatch_size_);
  const auto seconds_of = [&](const MicrobatchSeconds& seconds) {
    const auto device = seconds.find(kind.name);
    if (device == seconds.end() || device->second.count(size) == 0) {
      throw ConfigError(
          str("model: ",
              model.name,
              " was not priced on device \"",
              kind.name,
              "\" with microbatches of ",
              size,
              " samples"));
    }
    return device->second.at(size);
  };
  std::vector<double> forward;
  std::vector<double> total;
  for (const Layer& layer : divided_ != nullptr ? divided_->layers : model.layers) {
    const PassSeconds pass = seconds_of(layer.microbatch_seconds);
    const bool recomputed = activation_checkpointing && !total.empty();
    forward.push_back(pass.forward);
    total.push_back((recomputed ? 2 : 1) * pass.forward + pass.backward);
  }
  forward_.push_back(prefix_sums(forward));
  compute_.push_back(prefix_sums(total));
  if (model.returns_home) {
    tail_.push_back(seconds_of(divided_ != nullptr ? divided_->tail_seconds : model.tail_seconds));
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

void LayerTable::add_collectives(
    const Cluster& cluster,
    const std::vector<const PassCollectives*>& of_layers) {
  const int most = std::min(tensor_degree_, static_cast<int>(cluster.nodes.size()));
  for (int nodes = 1; nodes <= most; ++nodes) {
    std::vector<PassTraffic> sums(1);
    for (const PassCollectives* layer : of_layers) {
      PassTraffic sum = sums.back();
      sum.forward.add(traffic_of(layer->forward, cluster, nodes));
      sum.backward.add(traffic_of(layer->backward, cluster, nodes));
      sums.push_back(sum);
    }
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
  // Two moments, and f32 master weights beside half-precision ones.
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
