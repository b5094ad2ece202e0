#pragma once

// Models, clusters and strategies drawn at random, with everything that a price, a simulation or a
// search can know of. The same seed draws the same case on every machine.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tessera/cost/staged_strategy.h"
#include "tessera/cost/strategy_cost.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::cost {

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}

  int whole(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<unsigned>(high - low + 1));
  }
  bool one_in(int count) {
    return whole(1, count) == 1;
  }
  /// Evenly on a logarithmic scale.
  double size(double low, double high) {
    return low * std::pow(high / low, static_cast<double>(random_()) / 4294967296.0);
  }
  /// Returns 0 in one of `count` cases, which means that a figure is not known.
  double known_size(int count, double low, double high) {
    const double drawn = size(low, high);
    return one_in(count) ? 0 : drawn;
  }
  template <typename T>
  T one_of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(whole(0, static_cast<int>(values.size()) - 1))];
  }
  template <typename T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[random_() % i]);
    }
  }

 private:
  std::mt19937 random_;
};

inline DeviceKind drawn_kind(Draw& draw, const std::string& name) {
  DeviceKind kind;
  kind.name = name;
  kind.memory_bytes = draw.size(2e9, 16e9);
  kind.memory_bytes_per_s = draw.size(1e10, 1e12);
  kind.launch_seconds = draw.known_size(2, 1e-6, 1e-4);
  kind.product_flops_per_s = draw.size(1e10, 1e13);
  kind.profiled_bytes_per_s = draw.known_size(2, 1e8, 1e10);
  kind.host_bytes_per_s = draw.size(1e8, 1e10);
  kind.host_memory_bytes = draw.size(1e8, 1e11);
  kind.price_per_hour = draw.size(0.1, 10);
  kind.watts = draw.size(50, 500);
  kind.idle_watts = draw.one_in(2) ? 0 : kind.watts / 4;
  if (draw.one_in(3)) {
    kind.speed.moves = {{1, draw.size(1e-7, 1e-4)}, {1e6, draw.size(1e-4, 1e-3)}};
    kind.speed.functions = kind.speed.random = kind.speed.moves;
    kind.speed.products["f32"] = kind.speed.products["bf16"] = {{64, draw.size(1e-6, 1e-4)}};
  }
  return kind;
}

inline Node drawn_node(Draw& draw, int kind, int most_devices) {
  Node node;
  node.kind = kind;
  node.count = draw.whole(1, most_devices);
  node.intra_bytes_per_s = draw.size(1e8, 1e10);
  node.inter_bytes_per_s = draw.size(1e7, 1e9);
  node.stream_bytes_per_s = draw.known_size(2, 1e7, 1e9);
  node.network_cards = draw.one_in(3) ? draw.whole(1, 3) : 0;
  node.cores = draw.one_in(4) ? draw.whole(1, node.count) : 0;
  node.latency_seconds = draw.known_size(2, 1e-6, 1e-4);
  node.network_latency_seconds = draw.known_size(2, 1e-6, 1e-3);
  return node;
}

/// Draws one node to three of up to `most_devices` devices each, of two kinds at most.
inline Cluster drawn_cluster(Draw& draw, int most_devices) {
  Cluster cluster;
  cluster.name = "drawn";
  cluster.kinds = {drawn_kind(draw, "fast"), drawn_kind(draw, "slow")};
  const int nodes = draw.whole(1, 3);
  for (int n = 0; n < nodes; ++n) {
    cluster.nodes.push_back(drawn_node(draw, draw.whole(0, 1), most_devices));
  }
  for (int first = 0; first < nodes; ++first) {
    for (int second = first + 1; second < nodes; ++second) {
      if (draw.one_in(3)) {
        cluster.links.push_back(
            {first, second, draw.size(1e6, 1e9), draw.known_size(2, 1e-6, 1e-3)});
      }
    }
  }
  if (nodes == 3 && draw.one_in(3)) {
    cluster.groups.push_back({{0, draw.whole(1, 2)}, draw.size(1e6, 1e9)});
  }
  for (int i = draw.whole(-2, 3); i > 0 && nodes > 1; --i) {
    const int first = draw.whole(0, nodes - 2);
    CollectiveTime one = {"all_reduce", draw.whole(2, 4), 2, 1e5, draw.size(1e-4, 1e-2)};
    if (draw.one_in(2)) {
      one.among = {first, draw.whole(first + 1, nodes - 1)};
    }
    cluster.collectives.push_back(one);
  }
  if (draw.one_in(3)) {
    cluster.waiting = {{2, draw.size(0.01, 0.5)}};
  }
  cluster.measured = draw.one_in(2);
  cluster.busy_start_seconds = draw.known_size(2, 1e-6, 1e-4);
  cluster.busy_network_start_seconds = draw.known_size(2, 1e-6, 1e-4);
  if (draw.one_in(4)) {
    cluster.stalling_share = draw.size(0.01, 0.9);
    cluster.stalling_group_nodes = draw.whole(0, 2);
    cluster.stall_seconds = draw.size(1e-4, 1e-2);
  }
  return cluster;
}

inline TracedPart drawn_part(Draw& draw, std::size_t layers, int batch, int degree) {
  TracedPart part;
  const auto seconds = [&](double forward) {
    MicrobatchSeconds all;
    for (int samples = 1; samples <= batch; ++samples) {
      all["fast"][samples] = {forward * samples, 2 * forward * samples};
      all["slow"][samples] = {2 * forward * samples, 4.5 * forward * samples};
    }
    return all;
  };
  const auto collectives = [&] {
    MicrobatchCollectives all;
    const double bytes = draw.size(1e3, 1e6);
    const int times = draw.whole(1, 2);
    for (int samples = 1; degree > 1 && samples <= batch; ++samples) {
      all[samples].forward = {{"all_gather", degree, bytes * samples, times}};
      all[samples].backward = {{"reduce_scatter", degree, degree * bytes * samples, times}};
    }
    return all;
  };
  for (std::size_t i = 0; i < layers; ++i) {
    TracedLayer layer;
    const double forward = draw.size(1e-4, 1e-2) / degree;
    layer.microbatch_seconds = seconds(forward);
    layer.given_seconds = seconds(forward / 2);
    layer.deferred_seconds = seconds(degree > 1 ? 0 : forward / 3);
    layer.kept_bytes_per_sample = draw.size(1e5, 1e8);
    const double working = draw.size(1e4, 1e7);
    layer.working = SampleBytes{working, 1e5};
    layer.deferring = SampleBytes{1.5 * working, 1e5};
    layer.deferred_bytes_per_sample = layer.kept_bytes_per_sample / 4;
    layer.buffers[0] = SampleBytes{degree > 1 ? working / 2 : 0, 3e5};
    layer.buffers[2] = SampleBytes{0, i % 2 == 0 ? 2e5 : 4e5};
    layer.given_bytes_per_sample = layer.kept_bytes_per_sample / 3;
    layer.collectives = collectives();
    layer.whole_parameters = degree > 1 ? draw.whole(0, 1000) : 0;
    part.layers.push_back(layer);
  }
  part.tail_seconds = seconds(draw.size(1e-5, 1e-3));
  part.tail_collectives = collectives();
  part.tail_working = SampleBytes{1e6, 2e6};
  part.held_gradient_bytes = 4e6;
  part.tail_kept_bytes_per_sample = 1e6;
  return part;
}

/// Draws a model whose operators were traced, whole and by two ranks.
inline TracedModel drawn_trace(Draw& draw, const std::vector<Layer>& layers, int batch) {
  TracedModel traced;
  traced.whole = drawn_part(draw, layers.size(), batch, 1);
  for (const Distribution distribution : {Distribution::kSpeed, Distribution::kMemory}) {
    DividedModel divided;
    divided.way = {2, distribution, draw.one_in(2)};
    divided.layers = layers;
    for (Layer& layer : divided.layers) {
      layer.parameters /= 2;
    }
    divided.part = drawn_part(draw, layers.size(), batch, 2);
    traced.divided.push_back(divided);
  }
  return traced;
}

inline MeasuredModel drawn_measurements(Draw& draw, std::size_t layers) {
  MeasuredModel measured;
  for (std::size_t i = 0; i < layers; ++i) {
    MeasuredLayer layer;
    const double seconds = draw.size(1e-4, 1e-2);
    for (int degree = 1; degree <= 12; ++degree) {
      layer.forward_seconds_per_sample["fast"][degree] = seconds / degree;
      layer.forward_seconds_per_sample["slow"][degree] = 2.5 * seconds / std::sqrt(degree);
    }
    if (draw.one_in(2)) {
      layer.fixed_seconds["fast"] = seconds / 10;
    }
    measured.layers.push_back(layer);
  }
  if (draw.one_in(2)) {
    measured.sequence_length = 64;
    measured.hidden_size = 128;
    measured.num_attention_heads = draw.one_of<int>({4, 8});
    measured.vocabulary_size = 1000;
  }
  return measured;
}

/// Draws a model of up to `most_layers` layers, of measured seconds, traced operators or sizes.
inline DescribedModel drawn_model(Draw& draw, int most_layers) {
  constexpr int kSequence = 64;
  DescribedModel model;
  model.name = "drawn";
  model.global_batch_size = draw.one_of<int>({4, 6, 8, 12});
  model.precision = draw.one_in(2) ? Precision::kHalf : Precision::kFull;
  model.activation_checkpointing = draw.one_in(2);
  if (draw.one_in(4)) {
    model.optimizer_state_bytes = draw.one_of<double>({0, 4, 6});
  }
  const int layers = draw.whole(1, most_layers);
  for (int i = 0; i < layers; ++i) {
    Layer layer;
    layer.name = "layer." + std::to_string(i);
    layer.kind = draw.one_of<std::string>({"transformer_layer", "transformer_layer", "other"});
    layer.parameters = static_cast<std::int64_t>(draw.size(1e4, 2e8));
    layer.output_elements_per_sample = kSequence * draw.whole(8, 2000);
    model.layers.push_back(layer);
  }
  model.layers.back().kind = draw.one_of<std::string>({"lm_head", "transformer_layer", "other"});
  const int origin = draw.whole(0, 2);
  if (origin == 0) {
    model.source = drawn_measurements(draw, model.layers.size());
  } else if (origin == 1) {
    model.source = drawn_trace(draw, model.layers, model.global_batch_size);
    model.returns_home = draw.one_in(2);
  } else {
    model.layers.front().kind = "embedding";
    model.source = SizedModel{
        .sequence_length = kSequence,
        .num_attention_heads = draw.one_of<int>({4, 6}),
        .num_key_value_heads = draw.one_of<int>({0, 2}),
        .vocabulary_size = 1000,
        .gated_feed_forward = draw.one_in(2),
        .attention = draw.one_of<AttentionKernels>(
            {AttentionKernels::kOne,
             AttentionKernels::kFusedSoftmax,
             AttentionKernels::kOperators})};
  }
  if (origin != 1 && layers > 1 && draw.one_in(3)) {
    model.layers.back().parameters = model.layers.front().parameters;
    model.layers.back().shares_parameters_with = "layer.0";
  }
  return model;
}

/// Returns `stages` + 1 boundaries over so many layers.
inline std::vector<int> drawn_cuts(Draw& draw, int layers, int stages) {
  std::vector<int> inner(static_cast<std::size_t>(layers - 1));
  std::iota(inner.begin(), inner.end(), 1);
  draw.shuffle(inner);
  std::vector<int> cuts(inner.begin(), inner.begin() + (stages - 1));
  cuts.push_back(0);
  cuts.push_back(layers);
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

/// Draws degrees that fill the cluster and as much else as these allow. What it draws may still be
/// refused: a degree that was not measured, say.
inline Strategy drawn_strategy(Draw& draw, const DescribedModel& model, const Cluster& cluster) {
  const int devices = cluster.device_count();
  const int layers = static_cast<int>(model.layers.size());
  std::vector<Strategy> all;
  for (int pp = 1; pp <= std::min(layers, devices); ++pp) {
    for (int dp = 1; dp <= devices / pp; ++dp) {
      const int tp = devices / pp / dp;
      for (int samples = 1; samples <= 4; ++samples) {
        if (pp * dp * tp == devices && model.global_batch_size % (dp * samples) == 0) {
          Strategy one;
          one.pp = pp;
          one.dp = dp;
          one.tp = tp;
          one.microbatch_size = samples;
          all.push_back(one);
        }
      }
    }
  }
  if (all.empty()) {
    return {};
  }
  Strategy one = draw.one_of(all);
  if (one.dp == 2 && draw.one_in(2)) {
    one.replica_microbatch = {one.microbatch_size, draw.whole(1, one.microbatch_size)};
    if (draw.one_in(2)) {
      std::swap(one.replica_microbatch[0], one.replica_microbatch[1]);
    }
  }
  one.schedule = draw.one_in(3) ? Schedule::kSimple : Schedule::kInterleaved;
  one.active_microbatches = draw.one_in(3) ? 0 : one.pp + draw.whole(-1, 2);
  one.active_microbatches = std::max(one.active_microbatches, 0);
  if (one.pp > 1 && 2 * one.pp <= layers && draw.one_in(2)) {
    one.stages_per_rank = 2;
  }
  one.boundaries = drawn_cuts(draw, layers, one.stages());
  std::vector<int> order(static_cast<std::size_t>(devices));
  std::iota(order.begin(), order.end(), 0);
  if (draw.one_in(2)) {
    draw.shuffle(order);
  }
  one.device_of_rank = lay_out(one, draw.one_of<std::string>({"PDT", "DPT", "TDP"}), order);
  one.distribution = draw.one_of<Distribution>(
      {Distribution::kAsMeasured,
       Distribution::kSpeed,
       Distribution::kMemory,
       Distribution::kMesh});
  if (model.traced() != nullptr && one.tp == 2) {
    const TensorWay way = draw.one_of(model.traced()->divided).way;
    one.distribution = way.distribution;
    one.same_samples = way.same_samples;
  }
  one.activation_checkpointing = draw.one_in(2);
  one.keeps_products = one.activation_checkpointing && draw.one_in(3);
  one.shard_optimizer_state = draw.one_in(3);
  one.shard_parameters = one.shard_optimizer_state && draw.one_in(2);
  one.overlap_gradients = draw.one_in(2);
  one.offload_optimizer_state = draw.one_in(4);
  one.offload_activations = draw.one_in(4);
  return one;
}

/// Draws stages of their own widths, degrees and shares of a microbatch; the last devices may be
/// left out.
inline StagedStrategy
drawn_staged(Draw& draw, const DescribedModel& model, const Cluster& cluster) {
  StagedStrategy strategy;
  std::vector<int> divisors;
  for (int m = 1; m <= model.global_batch_size; ++m) {
    if (model.global_batch_size % m == 0) {
      divisors.push_back(m);
    }
  }
  strategy.microbatches = draw.one_of(divisors);
  strategy.schedule = draw.one_in(3) ? Schedule::kSimple : Schedule::kInterleaved;
  strategy.shard_optimizer_state = draw.one_in(3);
  const int samples = model.global_batch_size / strategy.microbatches;
  const int layers = static_cast<int>(model.layers.size());
  int left = cluster.device_count();
  const int stages = draw.whole(1, std::min(layers, left));
  const std::vector<int> cuts = drawn_cuts(draw, layers, stages);
  std::vector<int> order(static_cast<std::size_t>(left));
  std::iota(order.begin(), order.end(), 0);
  if (draw.one_in(2)) {
    draw.shuffle(order);
  }
  auto next = order.begin();
  for (int k = 0; k < stages; ++k) {
    OwnStage stage;
    stage.first_layer = cuts[static_cast<std::size_t>(k)];
    stage.last_layer = cuts[static_cast<std::size_t>(k) + 1];
    const int most = left - (stages - 1 - k);
    stage.way.degree = most >= 2 && draw.one_in(3) ? 2 : 1;
    const int replicas = draw.whole(1, std::min(samples, most / stage.way.degree));
    stage.samples = std::vector<int>(static_cast<std::size_t>(replicas), 1);
    for (int sample = replicas; sample < samples; ++sample) {
      ++stage.samples[static_cast<std::size_t>(draw.whole(0, replicas - 1))];
    }
    stage.recomputes = draw.one_in(2);
    stage.devices.assign(next, next + replicas * stage.way.degree);
    next += replicas * stage.way.degree;
    left -= replicas * stage.way.degree;
    strategy.stages.push_back(stage);
  }
  return strategy;
}

/// Returns a strategy in one line, for messages and recordings.
inline std::string text_of(const Strategy& strategy) {
  std::string text = "pp " + std::to_string(strategy.pp) + " dp " + std::to_string(strategy.dp) +
                     " tp " + std::to_string(strategy.tp) + " mbs " +
                     std::to_string(strategy.microbatch_size) + " cuts";
  for (const int cut : strategy.boundaries) {
    text += " " + std::to_string(cut);
  }
  text += " on";
  for (const int device : strategy.device_of_rank) {
    text += " " + std::to_string(device);
  }
  return text;
}

} // namespace tessera::cost
