#include "tessera/cost/described_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera::cost {

void MostBytes::take(const SampleBytes& one) {
  const auto at_most = [](const SampleBytes& a, const SampleBytes& b) {
    return a.per_sample <= b.per_sample && a.constant <= b.constant;
  };
  for (const SampleBytes& other : ones_) {
    if (at_most(one, other)) {
      return;
    }
  }
  ones_.erase(
      std::remove_if(
          ones_.begin(),
          ones_.end(),
          [&](const SampleBytes& other) { return at_most(other, one); }),
      ones_.end());
  ones_.push_back(one);
}

double MostBytes::of(int samples) const {
  double most = 0;
  for (const SampleBytes& one : ones_) {
    most = std::max(most, one.per_sample * samples + one.constant);
  }
  return most;
}

std::vector<int> DescribedModel::shared_with() const {
  std::map<std::string, int> index;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    index[layers[i].name] = static_cast<int>(i);
  }
  std::vector<int> result;
  for (const Layer& layer : layers) {
    const auto found = index.find(layer.shares_parameters_with);
    result.push_back(
        layer.shares_parameters_with.empty() || found == index.end() ? -1 : found->second);
  }
  return result;
}

const DividedModel* DescribedModel::divided_in(const TensorWay& way) const {
  if (way.degree == 1 || traced() == nullptr) {
    return nullptr;
  }
  for (const DividedModel& one : traced()->divided) {
    if (one.way == way) {
      return &one;
    }
  }
  throw ConfigError(
      str("model: ",
          name,
          " was not traced at tensor-parallel degree ",
          way.degree,
          " of kind \"",
          text_of(way.distribution),
          way.same_samples ? "\" with a prescaled batch" : "\"",
          "; no module of it can be divided so, or no node has so many "
          "devices"));
}

namespace {

std::vector<int> traced_degrees(const TracedModel& model, const std::string& device) {
  if (model.whole.layers.front().microbatch_seconds.count(device) == 0) {
    return {};
  }
  std::set<int> degrees = {1};
  for (const DividedModel& one : model.divided) {
    degrees.insert(one.way.degree);
  }
  return {degrees.begin(), degrees.end()};
}

// Returns the degrees at which every layer was measured.
std::vector<int> common_degrees(const MeasuredModel& model, const std::string& device) {
  std::vector<int> result;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const auto found = model.layers[i].forward_seconds_per_sample.find(device);
    std::vector<int> here;
    if (found != model.layers[i].forward_seconds_per_sample.end()) {
      for (const auto& [degree, seconds] : found->second) {
        here.push_back(degree);
      }
    }
    if (i == 0) {
      result = here;
    }
    std::erase_if(result, [&here](int degree) {
      return std::find(here.begin(), here.end(), degree) == here.end();
    });
  }
  return result;
}

void validate(const MeasuredLayer& layer, const std::string& place) {
  if (layer.forward_seconds_per_sample.empty()) {
    throw ConfigError(
        str(place,
            "forward_seconds_per_sample: found no device; write the measured "
            "seconds of at least one"));
  }
  for (const auto& [device, by_degree] : layer.forward_seconds_per_sample) {
    if (by_degree.count(1) == 0) {
      throw ConfigError(
          str(place,
              "forward_seconds_per_sample.",
              device,
              ": degree 1 is missing; the other degrees build on it"));
    }
    for (const auto& [degree, seconds] : by_degree) {
      if (degree < 1 || !std::isfinite(seconds) || seconds < 0) {
        throw ConfigError(
            str(place,
                "forward_seconds_per_sample.",
                device,
                ".",
                degree,
                ": found ",
                seconds,
                "; write seconds, 0 or more, at a degree of 1 or more"));
      }
    }
  }
  for (const auto& [device, seconds] : layer.fixed_seconds) {
    const auto measured = layer.forward_seconds_per_sample.find(device);
    if (measured == layer.forward_seconds_per_sample.end() || !(seconds >= 0) ||
        seconds > measured->second.at(1)) {
      throw ConfigError(
          str(place,
              "fixed_seconds.",
              device,
              ": found ",
              seconds,
              "; write the part of forward_seconds_per_sample.",
              device,
              " that does not grow with the samples"));
    }
  }
}

constexpr std::array<std::string_view, 9> kSizedKinds = {
    "embedding",
    "transformer_layer",
    "lm_head",
    "loss",
    "fused_loss",
    "cast",
    "metric",
    "norm",
    "other"};

// A number of a layer that another number of the file contradicts would be priced as it stands.
void check_sizes(const Layer& layer, const SizedModel& sizes) {
  const std::int64_t width = layer.output_elements_per_sample / sizes.sequence_length;
  const auto wrong = [&](const auto&... words) {
    throw ConfigError(str("model: layer \"", layer.name, "\": ", words...));
  };
  if (layer.kind == "lm_head" && width != sizes.vocabulary_size) {
    wrong(
        "output_elements_per_sample: found ",
        layer.output_elements_per_sample,
        "; the logits of ",
        sizes.sequence_length,
        " tokens over vocabulary_size ",
        sizes.vocabulary_size,
        " are ",
        sizes.sequence_length * sizes.vocabulary_size);
  }
  if (layer.kind != "transformer_layer") {
    return;
  }
  const auto wrong_width = [&](const char* but, std::int64_t size) {
    wrong(
        "output_elements_per_sample: found ",
        layer.output_elements_per_sample,
        ", which is ",
        width,
        " for each of ",
        sizes.sequence_length,
        " tokens, ",
        but,
        size);
  };
  if (sizes.hidden_size > 0 && width != sizes.hidden_size) {
    wrong_width("but hidden_size is ", sizes.hidden_size);
  }
  if (width % sizes.num_attention_heads != 0) {
    wrong_width("and no multiple of num_attention_heads, ", sizes.num_attention_heads);
  }
  const double share = sizes.num_key_value_heads > 0
                           ? static_cast<double>(sizes.num_key_value_heads) /
                                 static_cast<double>(sizes.num_attention_heads)
                           : 1;
  const double attention =
      (2 + 2 * share) * static_cast<double>(width) * static_cast<double>(width);
  if (layer.shares_parameters_with.empty() && static_cast<double>(layer.parameters) < attention) {
    wrong(
        "parameters: found ",
        layer.parameters,
        "; the four matrices of an attention ",
        width,
        " wide alone have ",
        static_cast<std::int64_t>(attention));
  }
}

// What the operators of a model follow from must be there.
void validate(const DescribedModel& model, const SizedModel& sizes) {
  if (sizes.sequence_length < 1 || sizes.num_attention_heads < 1 || sizes.vocabulary_size < 1) {
    throw ConfigError(
        "model: no layer has forward_seconds_per_sample; write measured seconds, or "
        "sequence_length, num_attention_heads and vocabulary_size, from which operators follow");
  }
  if (sizes.num_key_value_heads > 0 && sizes.num_attention_heads % sizes.num_key_value_heads != 0) {
    throw ConfigError(
        str("model: num_key_value_heads: found ",
            sizes.num_key_value_heads,
            "; write a divisor of num_attention_heads, ",
            sizes.num_attention_heads));
  }
  bool has_logits = false;
  for (const Layer& layer : model.layers) {
    has_logits = has_logits || layer.kind == "lm_head";
    if (layer.kind == "metric" &&
        (!has_logits || layer.parameters > 0 || layer.output_elements_per_sample > 0)) {
      throw ConfigError(str(
          "model: layer \"",
          layer.name,
          "\": a metric is a figure of the logits and has neither parameters nor outputs; write "
          "it behind the lm_head, with 0 for both"));
    }
    if (std::find(kSizedKinds.begin(), kSizedKinds.end(), layer.kind) == kSizedKinds.end()) {
      std::string kinds;
      for (const std::string_view kind : kSizedKinds) {
        kinds += str(kinds.empty() ? "\"" : ", \"", kind, "\"");
      }
      throw ConfigError(
          str("model: layer \"",
              layer.name,
              "\": kind: found \"",
              layer.kind,
              "\"; seconds of a layer that was not measured follow from its kind: write one of ",
              kinds,
              " (\"other\" reads and writes its output once)"));
    }
    if (layer.kind == "transformer_layer" && layer.output_elements_per_sample == 0) {
      throw ConfigError(
          str("model: layer \"",
              layer.name,
              "\": output_elements_per_sample: found 0; write its width times sequence_length"));
    }
    if (layer.output_elements_per_sample % sizes.sequence_length != 0) {
      throw ConfigError(
          str("model: layer \"",
              layer.name,
              "\": output_elements_per_sample: found ",
              layer.output_elements_per_sample,
              "; write a multiple of sequence_length, ",
              sizes.sequence_length));
    }
    check_sizes(layer, sizes);
  }
}

} // namespace

std::vector<int> DescribedModel::measured_degrees(const std::string& device) const {
  if (const SizedModel* sizes = sized()) {
    std::vector<int> degrees;
    const std::int64_t most = std::min<std::int64_t>(sizes->num_attention_heads, 1 << 16);
    for (int degree = 1; degree <= most; ++degree) {
      if (sizes->num_attention_heads % degree == 0) {
        degrees.push_back(degree);
      }
    }
    return degrees;
  }
  return traced() != nullptr ? traced_degrees(*traced(), device)
                             : common_degrees(measured(), device);
}

DescribedModel with_sequence(DescribedModel model, std::int64_t sequence_length) {
  SizedModel& sizes = std::get<SizedModel>(model.source);
  for (Layer& layer : model.layers) {
    const std::int64_t width = layer.output_elements_per_sample / sizes.sequence_length;
    if (width > std::numeric_limits<std::int64_t>::max() / sequence_length) {
      throw ConfigError(
          str("model: layer \"",
              layer.name,
              "\" has too many outputs for samples of ",
              sequence_length,
              " tokens"));
    }
    layer.output_elements_per_sample = width * sequence_length;
  }
  sizes.sequence_length = sequence_length;
  return model;
}

void validate(const DescribedModel& model) {
  if (model.layers.empty()) {
    throw ConfigError("model: layers: found none; list at least one layer");
  }
  if (model.global_batch_size < 1) {
    throw ConfigError(
        str("model: global_batch_size: found ", model.global_batch_size, "; write 1 or more"));
  }
  std::set<std::string> names;
  for (const Layer& layer : model.layers) {
    if (!names.insert(layer.name).second) {
      throw ConfigError(str(
          "model: layer \"", layer.name, "\" stands twice; every layer needs a name of its own"));
    }
  }
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const Layer& layer = model.layers[i];
    const std::string place = str("model: layer \"", layer.name, "\": ");
    if (layer.parameters < 0 || layer.output_elements_per_sample < 0) {
      throw ConfigError(
          str(place,
              "parameters and output_elements_per_sample: found ",
              layer.parameters,
              " and ",
              layer.output_elements_per_sample,
              "; write 0 or more"));
    }
    if (!layer.shares_parameters_with.empty() && (names.count(layer.shares_parameters_with) == 0 ||
                                                  layer.shares_parameters_with == layer.name)) {
      throw ConfigError(
          str(place,
              "shares_parameters_with: found \"",
              layer.shares_parameters_with,
              "\"; write the name of another layer"));
    }
    if (const auto* measured = std::get_if<MeasuredModel>(&model.source)) {
      validate(measured->layers.at(i), place);
    }
  }
  if (model.sized() != nullptr) {
    validate(model, *model.sized());
  }
}

} // namespace tessera::cost
