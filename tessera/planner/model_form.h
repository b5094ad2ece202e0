#pragma once

// The JSON form of models that were measured layer by layer. Private to the planner.

#include <algorithm>

#include "tessera/base/json/kinds.h"
#include "tessera/cost/described_model.h"

namespace tessera::form {

/// A text that begins with the type, because descriptions of published models say
/// more than that: "fp16 parameters, f32 master weights".
template <>
struct Custom<cost::Precision> {
  static bool read(const OrderedJson& found, cost::Precision& into) {
    const std::string text = found.is_string() ? found.get<std::string>() : "";
    const auto begins = [&](const char* start) { return text.starts_with(start); };
    const bool half = begins("fp16") || begins("bf16") || begins("f16");
    into = half ? cost::Precision::kHalf : cost::Precision::kFull;
    return half || begins("fp32") || begins("f32");
  }
  static OrderedJson write(const cost::Precision& value) {
    return value == cost::Precision::kHalf ? "fp16" : "fp32";
  }
  static std::string allowed() {
    return "a text that begins with \"fp16\", \"bf16\" or \"fp32\", the type of parameters and "
           "activations";
  }
  static OrderedJson schema() {
    return {{"type", "string"}, {"pattern", "^(fp16|bf16|f16|fp32|f32)"}};
  }
};

} // namespace tessera::form

namespace tessera::cost {

/// A layer of the file, which holds in one object what DescribedModel keeps apart.
struct LayerWithTimes {
  Layer layer;
  MeasuredLayer times;
};

template <typename Visit>
void describe(Visit& visit, LayerWithTimes& both) {
  using enum form::Presence;
  constexpr form::Bounds kNotNegative = form::at_least(0);
  Layer& layer = both.layer;
  visit.define("layer");
  visit({.name = "name"}, layer.name);
  visit(
      {.name = "kind",
       .doc = "transformer_layer: divided by tensor parallelism, with two all-reduces in its "
              "forward; lm_head: outputs are logits; loss: of a model of sizes, takes them; others "
              "run as measured"},
      layer.kind);
  visit({.name = "parameters", .bounds = kNotNegative}, layer.parameters);
  visit(
      {.name = "shares_parameters_with",
       .doc = "name of the layer whose parameters this one uses",
       .presence = kIfSaid},
      layer.shares_parameters_with);
  visit(
      {.name = "output_elements_per_sample", .bounds = kNotNegative},
      layer.output_elements_per_sample);
  visit(
      {.name = "forward_seconds_per_sample",
       .doc =
           "device name -> tensor-parallel degree, 1 among them -> seconds of the forward of one "
           "sample, with its all-reduces inside a node; where no layer has any, they follow from "
           "the "
           "model's sizes",
       .bounds = kNotNegative,
       .presence = kIfSaid},
      both.times.forward_seconds_per_sample);
  visit(
      {.name = "fixed_seconds",
       .doc = "device name -> the part of these seconds that a microbatch costs whatever its size",
       .bounds = kNotNegative,
       .presence = kIfSaid},
      both.times.fixed_seconds);
}

template <typename Visit>
void describe(Visit& visit, DescribedModel& model) {
  using enum form::Presence;
  MeasuredModel measured;
  SizedModel sizes;
  if (const MeasuredModel* source = std::get_if<MeasuredModel>(&model.source)) {
    measured = *source;
  }
  std::vector<LayerWithTimes> layers;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    layers.push_back({model.layers[i], measured.layers.at(i)});
  }
  visit.define("model");
  visit({.name = "name"}, model.name);
  visit({.name = "global_batch_size", .bounds = form::at_least(1)}, model.global_batch_size);
  const auto size = [&](const char* name, std::int64_t& value) {
    visit({.name = name, .bounds = form::at_least(1), .presence = kIfSaid}, value);
  };
  size("sequence_length", measured.sequence_length);
  size("hidden_size", measured.hidden_size);
  size("num_attention_heads", measured.num_attention_heads);
  size("vocabulary_size", measured.vocabulary_size);
  size("num_key_value_heads", sizes.num_key_value_heads);
  visit(
      {.name = "gated_feed_forward",
       .doc = "the feed-forward network has three matrices, as SwiGLU; of models of sizes",
       .presence = kIfSaid},
      sizes.gated_feed_forward);
  visit(
      {.name = "recomputation_stops_early",
       .doc = "a layer that is recomputed leaves its last product out, whose result no backward "
              "needs, as PyTorch's checkpoints do from 2.1 on; of models of sizes",
       .presence = kIfSaid},
      sizes.recomputation_stops_early);
  visit(
      {.name = "attention",
       .doc = "one kernel: scores stay in fast memory; operators: each reads and writes scores in "
              "memory, as frameworks did before; fused softmax: likewise, with scale, mask and "
              "softmax in one kernel; of models of sizes",
       .presence = kIfSaid},
      sizes.attention);
  visit(
      {.name = "precision", .doc = "begins with the type of parameters and activations"},
      model.precision);
  std::string checkpointing = model.activation_checkpointing ? "every layer" : "none";
  visit(
      {.name = "activation_checkpointing",
       .presence = kOptional,
       .choices = {"every layer", "none"}},
      checkpointing);
  if constexpr (Visit::kReads) {
    model.activation_checkpointing = checkpointing == "every layer";
  }
  visit(
      {.name = "layers",
       .doc = "in order of execution; pipelines are cut between them",
       .not_empty = true},
      layers);
  if constexpr (Visit::kReads) {
    model.layers.clear();
    measured.layers.clear();
    for (LayerWithTimes& both : layers) {
      model.layers.push_back(std::move(both.layer));
      measured.layers.push_back(std::move(both.times));
    }
    const bool timed =
        std::any_of(measured.layers.begin(), measured.layers.end(), [](const auto& times) {
          return !times.forward_seconds_per_sample.empty() || !times.fixed_seconds.empty();
        });
    if (timed || model.layers.empty()) {
      model.source = std::move(measured);
    } else {
      sizes.sequence_length = measured.sequence_length;
      sizes.hidden_size = measured.hidden_size;
      sizes.num_attention_heads = measured.num_attention_heads;
      sizes.vocabulary_size = measured.vocabulary_size;
      model.source = sizes;
    }
  }
}

} // namespace tessera::cost
