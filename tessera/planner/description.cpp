#include "tessera/planner/description.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/planner/described_json.h"

namespace tessera::planner {

namespace {

cost::Precision precision_of(const JsonFields& fields) {
  const std::string text = fields.text("precision");
  for (const char* half : {"fp16", "bf16", "f16"}) {
    if (text.rfind(half, 0) == 0) {
      return cost::Precision::kHalf;
    }
  }
  for (const char* full : {"fp32", "f32"}) {
    if (text.rfind(full, 0) == 0) {
      return cost::Precision::kFull;
    }
  }
  fields.fail(
      str("'precision' must begin with \"fp16\", \"bf16\" or \"fp32\", the "
          "type of parameters and activations; found \"",
          text,
          "\""));
}

bool checkpointing_of(const JsonFields& fields) {
  if (!fields.has("activation_checkpointing")) {
    return false;
  }
  const std::string text = fields.text("activation_checkpointing");
  if (text != "every layer" && text != "none") {
    fields.fail(
        str("'activation_checkpointing' must be \"every layer\" or \"none\"; "
            "found \"",
            text,
            "\""));
  }
  return text == "every layer";
}

int degree_of(const JsonFields& fields, const std::string& key) {
  const bool digits =
      !key.empty() && key.size() <= 6 && key.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || key.front() == '0') {
    fields.fail(
        str("'",
            key,
            "' is no tensor-parallel degree; write whole numbers such as "
            "\"1\", \"2\", \"4\" as names"));
  }
  return std::stoi(key);
}

// Adds one layer to the model.
void add_layer(const OrderedJson& json, const std::string& place, cost::DescribedModel& model) {
  const JsonFields fields(json, place);
  fields.allow_only(
      {"name",
       "kind",
       "parameters",
       "shares_parameters_with",
       "output_elements_per_sample",
       "forward_seconds_per_sample",
       "fixed_seconds"});
  cost::Layer layer;
  cost::MeasuredLayer times;
  layer.name = fields.text("name");
  layer.kind = fields.text("kind");
  layer.parameters = fields.integer("parameters");
  if (fields.has("shares_parameters_with")) {
    layer.shares_parameters_with = fields.text("shares_parameters_with");
  }
  layer.output_elements_per_sample = fields.integer("output_elements_per_sample");
  const OrderedJson& devices = object_of(fields, "forward_seconds_per_sample");
  for (const auto& device : devices.items()) {
    const std::string inner = str(place, ".forward_seconds_per_sample.", device.key());
    const JsonFields by_degree(device.value(), inner);
    for (const auto& entry : device.value().items()) {
      const int degree = degree_of(by_degree, entry.key());
      times.forward_seconds_per_sample[device.key()][degree] =
          by_degree.number(entry.key().c_str());
    }
  }
  if (fields.has("fixed_seconds")) {
    const OrderedJson& fixed = object_of(fields, "fixed_seconds");
    const JsonFields by_device(fixed, str(place, ".fixed_seconds"));
    for (const auto& entry : fixed.items()) {
      times.fixed_seconds[entry.key()] = by_device.number(entry.key().c_str());
    }
  }
  model.layers.push_back(std::move(layer));
  model.measured().layers.push_back(std::move(times));
}

cost::DescribedModel model_of(const OrderedJson& json) {
  const JsonFields fields(json, "model");
  fields.allow_only(
      {"name",
       "global_batch_size",
       "sequence_length",
       "hidden_size",
       "num_attention_heads",
       "vocabulary_size",
       "precision",
       "activation_checkpointing",
       "layers"});
  const auto optional = [&fields](const char* key) {
    return fields.has(key) ? fields.integer(key, 1) : 0;
  };
  cost::DescribedModel model;
  model.name = fields.text("name");
  model.global_batch_size = fields.small_integer("global_batch_size", 1);
  model.measured().sequence_length = optional("sequence_length");
  model.measured().hidden_size = optional("hidden_size");
  model.measured().num_attention_heads = optional("num_attention_heads");
  model.measured().vocabulary_size = optional("vocabulary_size");
  model.precision = precision_of(fields);
  model.activation_checkpointing = checkpointing_of(fields);
  const OrderedJson& layers = list_of(fields, "layers");
  for (std::size_t i = 0; i < layers.size(); ++i) {
    add_layer(layers[i], str("layers[", i, "]"), model);
  }
  cost::validate(model);
  return model;
}

} // namespace

cost::DescribedModel model_from_json(const std::string& text, const std::string& origin) {
  return read_named(text, origin, model_of);
}

cost::DescribedModel load_model(const std::string& path) {
  return model_from_json(read_file(path), path);
}

} // namespace tessera::planner
