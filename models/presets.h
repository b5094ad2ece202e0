#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "models/options.h"

namespace tessera::models {

using Options = std::variant<GptOptions, T5Options, BertOptions, NcfOptions>;

/// How many samples and positions a trial forward has.
struct SampleSize {
  std::int64_t batch = 1;
  std::int64_t sequence = 0; // 0 where the model has none (ncf)
  std::int64_t decoder_sequence = 0; // encoder-decoders only
};

/// A model that has a name.
struct Preset {
  std::string name;
  std::string family; // gpt, t5, bert, roberta, ncf
  std::string description;
  std::int64_t parameters = 0; // shared ones counted once
  Options options;
  SampleSize sample; // with which it is traced
};

/// All presets, small before large within a family.
const std::vector<Preset>& presets();

/// Throws: ConfigError that names the nearest preset.
const Preset& find_preset(const std::string& name);

/// Trainable elements of a model with these options.
std::int64_t count_parameters(const Options& options);

/// A preset with keys of a JSON object written over its options; a sample
/// longer than the changed model allows is shortened.
/// Throws: ConfigError as find_preset and the readers of options.h.
Preset resolve_preset(const std::string& name, const std::string& overrides);

} // namespace tessera::models
