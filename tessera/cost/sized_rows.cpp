#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/cost/data_sheets.h"
#include "tessera/cost/layer_rows.h"
#include "tessera/topology/mesh_layout.h"

namespace tessera::cost {

namespace {

// A loss casts, takes a softmax and its logarithm, gathers and takes a mean.
constexpr double kLossOperators = 5;
// A metric casts, takes a softmax with its logarithm in one kernel, gathers and adds to its sum.
constexpr double kMetricOperators = 4;

// A backward of a block whose sequence is divided has these of the block's size whole at one time:
// its input and the gradient of its output, both gathered, the gradient of its input before that is
// scattered, and the one before it, which its communicator has not given back.
constexpr double kWholeTensors = 4;

// A layer of kind "transformer_layer" consists of this, for one rank and one microbatch.
struct Transformer {
  double width = 0;
  double key_value_share = 1; // heads of keys and values to heads of queries
  double feed_forward = 0;
};

// A forward has these operations and bytes, from which those of its backward follow. Products run
// on matrix units, attention in one kernel that never writes its scores, all else streams.
struct Work {
  double product_flops = 0;
  double weight_flops = 0; // of product_flops, those that a selective recomputation leaves out
  double attention_flops = 0;
  double streamed_bytes = 0; // forward
  double forward_bytes = 0; // streamed by what has no backward
  double scores = 0; // of attention, where they are written to memory
  double last_flops = 0; // of product_flops and streamed_bytes, what a recomputation that stops
  double last_bytes = 0; // early does not run again
  double once_bytes = 0; // of a microbatch whatever its size, in its backward
  double operators = 0; // that a host starts in a forward, without collectives
  bool recomputed = false;
};

class SizedRowsBuilder {
 public:
  SizedRowsBuilder(
      const DescribedModel& model,
      const Cluster& cluster,
      const Strategy& strategy,
      const Constants& constants)
      : described_(model),
        sizes_(*model.sized()),
        cluster_(cluster),
        constants_(constants),
        degree_(strategy.tp),
        distribution_(strategy.tp > 1 ? strategy.distribution : Distribution::kAsMeasured),
        mesh_(topology::mesh_shape(strategy.tp)),
        pass_(value_bytes(model.precision)),
        tokens_(static_cast<double>(sizes_.sequence_length) * strategy.microbatch_size),
        recomputes_(strategy.activation_checkpointing),
        keeps_products_(recomputes_ && strategy.keeps_products),
        stops_early_(recomputes_ && !keeps_products_ && sizes_.recomputation_stops_early) {
    casts_logits_ = std::any_of(model.layers.begin(), model.layers.end(), [](const Layer& layer) {
      return layer.kind == "cast";
    });
    for (const DeviceKind& kind : cluster.kinds) {
      if (kind.memory_bytes_per_s == 0) {
        throw ConfigError(str(
            "cluster: device \"",
            kind.name,
            "\" is not known by name, and its memory_gb_per_s is missing; write the bandwidth of "
            "its memory, from which a model without measured seconds is priced"));
      }
    }
    has_loss_ = std::any_of(model.layers.begin(), model.layers.end(), [](const Layer& layer) {
      return layer.kind == "loss" || layer.kind == "fused_loss";
    });
  }

  LayerRow row(std::size_t index) const {
    const Layer& layer = described_.layers[index];
    LayerRow row;
    const double elements = tokens_ * width(layer);
    row.parameters = static_cast<double>(layer.parameters) / degree_;
    row.output_bytes = elements * pass_ / whole_on();
    if (layer.kind == "transformer_layer") {
      add_transformer(layer, row);
    } else if (layer.kind == "lm_head") {
      add_head(index == 0 ? 0 : width(described_.layers[index - 1]), row);
    } else if (layer.kind == "fused_loss") {
      // One kernel reads the logits and, in the backward, puts their gradients in their place.
      Work work;
      const double logits = tokens_ * static_cast<double>(sizes_.vocabulary_size) / degree_;
      work.streamed_bytes = pass_ * logits;
      work.operators = 1;
      add_seconds(work, row);
      row.logit_bytes = pass_ * logits;
    } else if (layer.kind == "metric") {
      // It follows the backward, whose memory it takes.
      Work work;
      work.forward_bytes = constants_.metric_traffic_bytes * tokens_ *
                           static_cast<double>(sizes_.vocabulary_size) / degree_;
      work.operators = kMetricOperators;
      add_seconds(work, row);
    } else if (layer.kind == "loss") {
      add_loss({}, tokens_ * static_cast<double>(sizes_.vocabulary_size), row);
    } else {
      Work work; // none where there is nothing to learn: the layer passes on what it gets
      work.streamed_bytes = layer.parameters > 0 ? 2 * pass_ * elements / degree_ : 0;
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
    work.weight_flops = work.product_flops;
    const auto positions = static_cast<double>(sizes_.sequence_length);
    if (sizes_.attention != AttentionKernels::kOne) {
      // Two products over all pairs, since a mask works on scores that are there.
      work.product_flops += 4 * elements * positions / degree_;
      work.scores = tokens_ * positions * static_cast<double>(sizes_.num_attention_heads) / degree_;
    } else {
      // Two products over the half of all pairs that a causal mask leaves.
      work.attention_flops = 2 * elements * positions / degree_;
    }
    // Norms read and write, residual sums read twice; queries, keys and values are turned or
    // copied; the feed-forward network's function reads and writes, and a gated one is multiplied.
    work.streamed_bytes = (2 * 2 + 2 * 3) * pass_ * elements / whole_on() +
                          2 * queries * pass_ * elements / degree_ +
                          (sizes_.gated_feed_forward ? 5 : 2) * pass_ * fed / degree_;
    work.once_bytes = accumulated_bytes(row.parameters);
    row.tensors = sizes_.gated_feed_forward ? 7 : 6;
    if (distribution_ == Distribution::kMesh) {
      // Each of four products moves its input or its output, and its weight.
      add_panels(4, 3 * elements + fed, static_cast<double>(layer.parameters), row);
    } else if (degree_ > 1) {
      add_exchange(2, elements, row, stops_early_);
    }
    work.operators = constants_.transformer_operators;
    work.recomputed = true; // activation checkpointing is for these layers
    if (stops_early_) {
      // The feed-forward network's last product and the sum behind it, whose results no backward
      // needs.
      work.last_flops = 2 * tokens_ * parts.feed_forward * parts.width / degree_;
      work.last_bytes = 3 * pass_ * elements / whole_on();
    }
    add_seconds(work, row);
    // A backward needs the inputs of norms and blocks, queries, keys, values and what attention
    // returns, and the inputs and outputs of the feed-forward network's function.
    const double kept =
        2 * 2 * pass_ * elements / whole_on() +
        ((queries + 1) * pass_ * elements + (sizes_.gated_feed_forward ? 4 : 2) * pass_ * fed) /
            degree_;
    row.recomputed = recomputes_;
    row.kept_bytes = recomputes_ ? elements * pass_ / degree_ : kept;
    if (keeps_products_) {
      // Queries, keys and values, what the attention returns, and what goes into the feed-forward
      // network's function; its result is the layer's but for a sum, which no backward needs.
      row.kept_bytes +=
          pass_ * ((queries + 1) * elements + (sizes_.gated_feed_forward ? 2 : 1) * fed) / degree_;
    }
    const double scores = constants_.score_bytes * work.scores;
    row.kept_bytes += recomputes_ ? 0 : scores;
    row.working_bytes = recomputes_ ? kept + scores : 2 * pass_ * fed / degree_;
    row.working_bytes += divides_sequences() ? kWholeTensors * pass_ * elements : 0;
    row.gathered_bytes = divides_sequences() && !recomputes_ ? 2 * pass_ * elements : 0;
  }

  // `width` is that of the layer in front.
  void add_head(double width, LayerRow& row) const {
    const double logits = tokens_ * static_cast<double>(sizes_.vocabulary_size);
    const double elements = tokens_ * width;
    const double weights = static_cast<double>(sizes_.vocabulary_size) * width / degree_;
    Work work;
    work.product_flops = 2 * tokens_ * weights;
    work.streamed_bytes = pass_ * logits / degree_;
    work.once_bytes = accumulated_bytes(weights);
    work.operators = 1;
    row.tensors = 1;
    if (distribution_ == Distribution::kMesh) {
      add_panels(1, logits, weights * degree_, row);
    } else if (degree_ > 1) {
      add_exchange(1, elements, row);
    }
    row.kept_bytes = pass_ * elements / (distribution_ == Distribution::kMesh ? degree_ : 1);
    if (has_loss_) {
      add_seconds(work, row);
      row.logit_bytes = casts_logits_ ? 0 : pass_ * logits / degree_;
    } else {
      add_loss(work, logits, row);
    }
  }

  // Adds the loss to the work of its layer.
  void add_loss(Work work, double logits, LayerRow& row) const {
    work.streamed_bytes += constants_.loss_traffic_bytes / 3 * logits / degree_;
    work.operators += kLossOperators;
    add_seconds(work, row);
    row.logit_bytes = (constants_.logit_bytes - (has_loss_ ? pass_ : 0)) * logits / degree_;
    row.output_bytes = 0;
  }

  // Sequences are gathered in front of each block and scattered behind it; a backward does the
  // adjoints, and gathers what it kept divided. Whole activations are all-reduced behind each block
  // and their gradients in front of it; a checkpoint, of which every rank keeps a part, is
  // gathered.
  void add_exchange(int blocks, double elements, LayerRow& row, bool stops_early = false) const {
    const double bytes = elements * pass_;
    const TensorCollective gather = {"all_gather", degree_, bytes / degree_, blocks};
    const TensorCollective scatter = {"reduce_scatter", degree_, bytes, blocks};
    const TensorCollective reduce = {"all_reduce", degree_, bytes, blocks};
    const auto again = [&](TensorCollective behind) { // a block's
      behind.times -= stops_early ? 1 : 0;
      return behind;
    };
    if (divides_sequences()) {
      row.exchanged.forward = {gather, scatter};
      row.exchanged.backward = {gather, scatter, gather};
      if (recomputes_) {
        row.exchanged.backward.push_back(gather);
        row.exchanged.backward.push_back(again(scatter));
      }
    } else {
      row.exchanged.forward = {reduce};
      row.exchanged.backward = {reduce};
      if (recomputes_) {
        row.exchanged.backward.push_back(again(reduce));
        row.exchanged.backward.push_back({"all_gather", degree_, bytes / degree_, 1});
      }
    }
    row.collectives = started(row.exchanged.forward) + started(row.exchanged.backward);
  }

  // A q x r mesh moves panels of the activations, of which a mesh row holds a q-th, along rows, and
  // those of the weights, of which a column holds an r-th, along columns. Each of the
  // two products of a backward moves as much as the forward, and recomputation once more, also one
  // that stops early.
  // Source: Xu et al. 2021, section 2.4 and table 1.
  void add_panels(int products, double activations, double weights, LayerRow& row) const {
    const int panels = mesh_.rows + mesh_.columns - std::gcd(mesh_.rows, mesh_.columns);
    const auto along = [&](MeshLine line, double elements, int times) {
      return TensorCollective{
          .operation = "panel",
          .ranks = degree_,
          .bytes = elements * pass_ / (products * panels),
          .times = products * panels * times,
          .line = line};
    };
    const auto both = [&](int times) {
      return std::vector<TensorCollective>{
          along(MeshLine::kRow, activations / mesh_.rows, times),
          along(MeshLine::kColumn, weights / mesh_.columns, times)};
    };
    row.exchanged.forward = both(1);
    row.exchanged.backward = both(recomputes_ ? 3 : 2);
    row.collectives = started(row.exchanged.forward) + started(row.exchanged.backward);
  }

  bool divides_sequences() const {
    return degree_ > 1 && distribution_ == Distribution::kAsMeasured;
  }

  // Returns among how many ranks activations are divided outside of the blocks.
  int whole_on() const {
    return distribution_ == Distribution::kSpeed ? 1 : degree_;
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
    const bool fused = sizes_.attention == AttentionKernels::kFusedSoftmax;
    const double score_bytes =
        fused ? constants_.fused_score_forward_bytes : constants_.score_forward_bytes;
    const double score_gradient_bytes =
        fused ? constants_.fused_score_backward_bytes : constants_.score_backward_bytes;
    for (const DeviceKind& kind : cluster_.kinds) {
      const double flops_per_s = product_flops(kind, described_.precision);
      const double products = work.product_flops / flops_per_s;
      const double attention =
          work.attention_flops / (kind.attention_flops_per_s > 0
                                      ? kind.attention_flops_per_s
                                      : flops_per_s * constants_.attention_share);
      const double bytes_per_s = kind.memory_bytes_per_s * constants_.memory_efficiency;
      const double forward =
          products + attention +
          (work.streamed_bytes + work.forward_bytes + work.scores * score_bytes) / bytes_per_s;
      // A backward has a product for each factor; attention computes its scores again.
      const double backward =
          2 * products + 2.5 * attention +
          (2 * work.streamed_bytes + work.once_bytes + work.scores * score_gradient_bytes) /
              bytes_per_s;
      row.forward_seconds.push_back(forward);
      row.seconds.push_back(
          forward * (recomputed ? 2 : 1) + backward -
          (recomputed && keeps_products_ ? work.weight_flops / flops_per_s : 0) -
          (recomputed ? work.last_flops / flops_per_s + work.last_bytes / bytes_per_s : 0));
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
  Distribution distribution_;
  topology::MeshShape mesh_;
  double pass_; // bytes of one pass over an element, read or written
  double tokens_; // of a microbatch
  bool recomputes_;
  bool keeps_products_;
  bool stops_early_;
  bool has_loss_ = false;
  bool casts_logits_ = false; // in a layer of its own, behind which those of 16 bits are not needed
};

} // namespace

LayerRows sized_rows(
    const DescribedModel& model,
    const Cluster& cluster,
    const Strategy& strategy,
    const Constants& constants) {
  if (strategy.tp > 1 && strategy.distribution == Distribution::kMemory) {
    throw ConfigError(
        "tensor-parallel kind: found \"memory\"; a model of sizes is priced with \"speed\", \"2d\" "
        "or, when no kind is given, with divided sequences");
  }
  const SizedRowsBuilder builder(model, cluster, strategy, constants);
  return rows_of_layers(model.layers.size(), [&](std::size_t i) { return builder.row(i); });
}

} // namespace tessera::cost
