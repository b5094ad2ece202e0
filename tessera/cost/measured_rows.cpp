#include <algorithm>
#include <cmath>

#include "tessera/cost/layer_rows.h"
#include "tessera/cost/layer_seconds.h"

namespace tessera::cost {

namespace {

// Attention writes so many scores for one sample, divided among so many ranks.
struct Scores {
  double elements = 0;
  double divisor = 1;
};

Scores scores_of(
    const MeasuredModel& model,
    const Layer& layer,
    const MeasuredLayer& times,
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
  // A layer has about 12 hidden^2 parameters, which gives the hidden size; assume one
  // head, since the model gives none.
  const double hidden = std::sqrt(static_cast<double>(layer.parameters) / 12.0);
  const double s = hidden > 0 ? elements / hidden : 0;
  scores.elements = s * s;
  // The scores were written during the measured forward, so they cannot be more than
  // the memory's bandwidth allows. This bounds attention within windows.
  for (const DeviceKind& kind : cluster.kinds) {
    if (kind.memory_bytes_per_s > 0) {
      const double written = measured_seconds(layer, times, kind.name, 1) * kind.memory_bytes_per_s;
      scores.elements = std::min(scores.elements, written / score_bytes);
    }
  }
  return scores;
}

class MeasuredRowsBuilder {
 public:
  MeasuredRowsBuilder(
      const DescribedModel& model,
      const Cluster& cluster,
      const Strategy& strategy,
      const Constants& constants)
      : described_(model),
        model_(model.measured()),
        cluster_(cluster),
        constants_(constants),
        degree_(strategy.tp),
        samples_(strategy.microbatch_size),
        recomputes_(strategy.activation_checkpointing) {
    for (const DeviceKind& kind : cluster.kinds) {
      launch_seconds_.push_back(launch_seconds(model, kind, constants));
    }
  }

  LayerRow row(std::size_t index) const {
    const Layer& layer = described_.layers[index];
    LayerRow row;
    const double elements = this->elements(layer);
    row.output_bytes = elements * value_bytes(described_.precision);
    row.parameters = static_cast<double>(layer.parameters) / degree_;
    for (std::size_t kind = 0; kind < cluster_.kinds.size(); ++kind) {
      add_seconds(index, kind, row);
    }
    if (is_transformer(layer) && degree_ > 1) {
      // Each of the two blocks is all-reduced in forward, backward and recomputation.
      row.exchanged.forward = {{"all_reduce", degree_, row.output_bytes, 2}};
      row.exchanged.backward = {{"all_reduce", degree_, row.output_bytes, recomputes_ ? 4 : 2}};
    }
    // The copies of the logits are counted once, at the head.
    row.logit_bytes = layer.kind == "lm_head" ? constants_.logit_bytes * elements / tp() : 0;
    // The activation is kept together with the buffer in which it was received.
    row.kept_bytes = makes_logits(layer) ? 0 : 2 * row.output_bytes;
    if (is_transformer(layer)) {
      row.recomputed = recomputes_;
      add_transformer_memory(layer, model_.layers[index], row);
    }
    return row;
  }

 private:
  double tp() const {
    return degree_;
  }

  double elements(const Layer& layer) const {
    return static_cast<double>(layer.output_elements_per_sample) * samples_;
  }

  bool makes_logits(const Layer& layer) const {
    return layer.kind == "lm_head" ||
           (model_.vocabulary_size > 0 && model_.sequence_length > 0 &&
            layer.output_elements_per_sample == model_.vocabulary_size * model_.sequence_length);
  }

  void add_seconds(std::size_t index, std::size_t kind, LayerRow& row) const {
    const double recomputed = is_transformer(described_.layers[index]) && recomputes_ ? 1.0 : 0.0;
    const LayerSeconds one = layer_seconds(
        described_,
        index,
        cluster_,
        cluster_.kinds[kind],
        degree_,
        launch_seconds_[kind],
        constants_);
    const double work = one.work * samples_;
    row.forward_seconds.push_back(one.launching + one.dividing + work);
    // A backward has twice the operators, but the host launches them without the
    // interpreter, which takes about as long as launching the forward.
    row.seconds.push_back(
        one.launching * (2 + recomputed) + one.dividing * (1 + recomputed) +
        work * (3 + recomputed));
  }

  void add_transformer_memory(const Layer& layer, const MeasuredLayer& times, LayerRow& row) const {
    const Scores scores =
        scores_of(model_, layer, times, cluster_, degree_, constants_.score_bytes);
    const double kept_scores = constants_.score_bytes * scores.elements * samples_ / scores.divisor;
    row.working_bytes = elements(layer) * (constants_.whole_working_bytes +
                                           constants_.divided_working_bytes / tp()) +
                        kept_scores;
    if (!recomputes_) {
      // A layer keeps 10 + 24 / t bytes for each element (Korthikanti et al. 2022, section 4.1).
      row.kept_bytes +=
          elements(layer) * (10 + 24 / tp()) * value_bytes(described_.precision) / 2 + kept_scores;
    }
  }

  const DescribedModel& described_;
  const MeasuredModel& model_;
  const Cluster& cluster_;
  const Constants& constants_;
  int degree_;
  double samples_;
  bool recomputes_;
  std::vector<double> launch_seconds_; // of each kind of device
};

} // namespace

LayerRows measured_rows(
    const DescribedModel& model,
    const Cluster& cluster,
    const Strategy& strategy,
    const Constants& constants) {
  if (strategy.activation_checkpointing && strategy.keeps_products) {
    throw ConfigError(
        "selective recomputation has no price for a measured model, of whose seconds nobody says "
        "which are products; recompute whole layers, or describe the model by its sizes");
  }
  const MeasuredRowsBuilder builder(model, cluster, strategy, constants);
  return rows_of_layers(model.layers.size(), [&](std::size_t i) { return builder.row(i); });
}

} // namespace tessera::cost
