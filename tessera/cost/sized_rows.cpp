#include <algorithm>

#include "tessera/cost/data_sheets.h"
#include "tessera/cost/layer_rows.h"

namespace tessera::cost {

namespace {

// Bytes of one 16-bit pass over an element, read or written.
constexpr double kPass = 2;

// Casts, a softmax, its logarithm, a gather and a mean.
constexpr double kLossOperators = 5;

// What a layer of kind "transformer_layer" consists of, for one rank and one microbatch.
struct Transformer {
  double width = 0;
  double key_value_share = 1; // heads of keys and values to heads of queries
  double feed_forward = 0;
};

// The operations and bytes of a forward, and how many times as many its backward has. Products run
// on matrix units, attention in one kernel that never writes its scores, all else streams.
struct Work {
  double product_flops = 0;
  double attention_flops = 0;
  double streamed_bytes = 0; // forward
  double once_bytes = 0; // of a microbatch whatever its size, in its backward
  double operators = 0; // that a host starts in a forward, without collectives
  bool recomputed = false;
};

class Builder {
 public:
  Builder(
      const DescribedModel& model,
      const Cluster& cluster,
      const Strategy& strategy,
      const Constants& constants)
      : described_(model),
        sizes_(*model.sized()),
        cluster_(cluster),
        constants_(constants),
        degree_(strategy.tp),
        tokens_(static_cast<double>(sizes_.sequence_length) * strategy.microbatch_size),
        recomputes_(strategy.activation_checkpointing) {
    has_loss_ = std::any_of(model.layers.begin(), model.layers.end(), [](const Layer& layer) {
      return layer.kind == "loss" || layer.kind == "fused_loss";
    });
  }

  LayerRow row(std::size_t index) const {
    const Layer& layer = described_.layers[index];
    LayerRow row;
    const double elements = tokens_ * width(layer);
    row.parameters = static_cast<double>(layer.parameters) / degree_;
    row.output_bytes = elements * value_bytes(described_.precision) / degree_;
    if (layer.kind == "transformer_layer") {
      add_transformer(layer, row);
    } else if (layer.kind == "lm_head") {
      add_head(index == 0 ? 0 : width(described_.layers[index - 1]), row);
    } else if (layer.kind == "fused_loss") {
      // One kernel reads the logits and, in the backward, puts their gradients in their place.
      Work work;
      const double logits = tokens_ * static_cast<double>(sizes_.vocabulary_size) / degree_;
      work.streamed_bytes = kPass * logits;
      work.operators = 1;
      add_seconds(work, row);
      row.logit_bytes = kPass * logits;
    } else if (layer.kind == "loss") {
      add_loss({}, tokens_ * static_cast<double>(sizes_.vocabulary_size), row);
    } else {
      Work work; // none where there is nothing to learn: the layer passes on what it gets
      work.streamed_bytes = layer.parameters > 0 ? 2 * kPass * elements / degree_ : 0;
      work.once_bytes = accumulated_bytes(row.parameters);
      add_seconds(work, row);
      row.tensors = layer.parameters > 0 ? 1 : 0;
    }
    return row;
  }

 private:
  double width(const Layer& layer) const {
    return static_cast<double>(layer.output_elements_per_sample / sizes_.sequence_length);
  }

  // The gradients of a microbatch are added to those before.
  double accumulated_bytes(double parameters) const {
    return parameters * constants_.accumulation_traffic_bytes;
  }

  Transformer parts(const Layer& layer) const {
    Transformer parts;
    parts.width = width(layer);
    if (sizes_.num_key_value_heads > 0) {
      parts.key_value_share = static_cast<double>(sizes_.num_key_value_heads) /
                              static_cast<double>(sizes_.num_attention_heads);
    }
    const double attention = (2 + 2 * parts.key_value_share) * parts.width * parts.width;
    const double matrices = sizes_.gated_feed_forward ? 3 : 2;
    parts.feed_forward = std::max(
        0.0, (static_cast<double>(layer.parameters) - attention) / (matrices * parts.width));
    return parts;
  }

  void add_transformer(const Layer& layer, LayerRow& row) const {
    const Transformer parts = this->parts(layer);
    const double elements = tokens_ * parts.width;
    const double fed = tokens_ * parts.feed_forward;
    const double queries = 1 + 2 * parts.key_value_share; // and keys and values, in widths
    Work work;
    work.product_flops = 2 * tokens_ * row.parameters;
    // Two products over the half of all pairs that a causal mask leaves.
    work.attention_flops = 2 * elements * static_cast<double>(sizes_.sequence_length) / degree_;
    // Norms read and write, residual sums read twice; queries, keys and values are turned or
    // copied; the feed-forward network's function reads and writes, and a gated one is multiplied.
    work.streamed_bytes = (2 * 2 + 2 * 3 + 2 * queries) * kPass * elements / degree_ +
                          (sizes_.gated_feed_forward ? 5 : 2) * kPass * fed / degree_;
    work.once_bytes = accumulated_bytes(row.parameters);
    row.tensors = sizes_.gated_feed_forward ? 7 : 6;
    if (degree_ > 1) {
      // Sequences are gathered in front of each of two blocks and scattered behind it; a backward
      // does the adjoints, and gathers what it kept divided.
      add_exchange(2, elements, row);
    }
    work.operators = constants_.transformer_operators;
    work.recomputed = true; // activation checkpointing is for these layers
    add_seconds(work, row);
    // Inputs of norms and blocks, queries, keys, values and what attention returns; the inputs and
    // outputs of the feed-forward network's function.
    const double kept = (2 * 2 + queries + 1) * kPass * elements +
                        (sizes_.gated_feed_forward ? 4 : 2) * kPass * fed;
    row.kept_bytes = recomputes_ ? row.output_bytes : kept / degree_;
    row.working_bytes = recomputes_ ? kept / degree_ : 2 * kPass * fed / degree_;
    row.gathered_bytes = degree_ > 1 && !recomputes_ ? 2 * kPass * elements : 0;
  }

  // `width` is that of the layer in front.
  void add_head(double width, LayerRow& row) const {
    const double logits = tokens_ * static_cast<double>(sizes_.vocabulary_size);
    const double elements = tokens_ * width;
    const double weights = static_cast<double>(sizes_.vocabulary_size) * width / degree_;
    Work work;
    work.product_flops = 2 * tokens_ * weights;
    work.streamed_bytes = kPass * logits / degree_;
    work.once_bytes = accumulated_bytes(weights);
    work.operators = 1;
    row.tensors = 1;
    if (degree_ > 1) {
      add_exchange(1, elements, row);
    }
    row.kept_bytes = kPass * elements;
    if (has_loss_) {
      add_seconds(work, row);
      row.logit_bytes = kPass * logits / degree_;
    } else {
      add_loss(work, logits, row);
    }
  }

  // Adds the loss to the work of its layer.
  void add_loss(Work work, double logits, LayerRow& row) const {
    work.streamed_bytes += constants_.loss_traffic_bytes / 3 * logits / degree_;
    work.operators += kLossOperators;
    add_seconds(work, row);
    row.logit_bytes = (constants_.logit_bytes - (has_loss_ ? kPass : 0)) * logits / degree_;
    row.output_bytes = 0;
  }

  void add_exchange(int blocks, double elements, LayerRow& row) const {
    const double bytes = elements * value_bytes(described_.precision);
    const TensorCollective gather = {"all_gather", degree_, bytes / degree_, blocks};
    const TensorCollective scatter = {"reduce_scatter", degree_, bytes, blocks};
    row.exchanged.forward = {gather, scatter};
    row.exchanged.backward = {gather, scatter, gather};
    if (recomputes_) {
      row.exchanged.backward.push_back(gather);
      row.exchanged.backward.push_back(scatter);
    }
    row.collectives = started(row.exchanged.forward) + started(row.exchanged.backward);
  }

  static double started(const std::vector<TensorCollective>& collectives) {
    double times = 0;
    for (const TensorCollective& one : collectives) {
      times += one.times;
    }
    return times;
  }

  void add_seconds(const Work& work, LayerRow& row) const {
    const bool recomputed = recomputes_ && work.recomputed;
    for (const DeviceKind& kind : cluster_.kinds) {
      const double flops_per_s = product_flops(kind, described_.precision);
      const double products = work.product_flops / flops_per_s;
      const double attention = work.attention_flops / (flops_per_s * constants_.attention_share);
      const double bytes_per_s = kind.memory_bytes_per_s * constants_.memory_efficiency;
      const double forward = products + attention + work.streamed_bytes / bytes_per_s;
      // A backward has a product for each factor; attention computes its scores again.
      const double backward = 2 * products + 2.5 * attention +
                              (2 * work.streamed_bytes + work.once_bytes) / bytes_per_s;
      row.forward_seconds.push_back(forward);
      row.seconds.push_back(forward * (recomputed ? 2 : 1) + backward);
      row.host_seconds.push_back(
          (work.operators + started(row.exchanged.forward)) * (recomputed ? 3 : 2) *
          kind.launch_seconds);
    }
  }

  const DescribedModel& described_;
  const SizedModel& sizes_;
  const Cluster& cluster_;
  const Constants& constants_;
  int degree_;
  double tokens_; // of a microbatch
  bool recomputes_;
  bool has_loss_ = false;
};

} // namespace

LayerRows sized_rows(
    const DescribedModel& model,
    const Cluster& cluster,
    const Strategy& strategy,
    const Constants& constants) {
  const Builder builder(model, cluster, strategy, constants);
  LayerRows rows;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    rows.layers.push_back(builder.row(i));
  }
  return rows;
}

} // namespace tessera::cost
