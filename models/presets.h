#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "models/options.h"

namespace tessera::models {

using Options = std::variant<GptOptions, T5Options, BertOptions, NcfOptions, DecoderOptions>;

/// How many samples and positions a trial forward has.
struct SampleSize {
  std::int64_t batch = 1;
  std::int64_t sequence = 0; // of an ncf: pairs of a sample; 0: a sample is one pair
  std::int64_t decoder_sequence = 0; // encoder-decoders only
};

/// A model that has a name.
struct Preset {
  std::string name;
  std::string family; // gpt, llama, gptj, gpt_neo, gpt_neox, t5, bert, roberta, ncf
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

/// What programs ask of a model of texts.
struct LanguageModelSizes {
  std::int64_t vocabulary = 0;
  std::int64_t positions = 0; // longest sequence; 0: any (t5)
  std::int64_t layers = 0; // of an encoder-decoder: of both together
  std::int64_t width = 0;
  std::int64_t attention_width = 0; // heads times their width
  /// Weights of the layers that take part in products; of a t5, of its encoder.
  std::int64_t layer_weights = 0;
  const char* positions_key = ""; // the option that says it
  std::int64_t reserved_positions = 0; // of that option, which no token gets
};

/// None for a model of another kind.
std::optional<LanguageModelSizes> language_model_sizes(const Options& options);

/// Whether a model continues a text: gpt, llama, gptj, gpt_neo and gpt_neox do.
bool continues_a_text(const Options& options);

/// Floating-point operations that training needs for one token of a sample of `sequence`: 6 for
/// each weight that takes part in a matrix product (a product and its two gradients, a
/// multiplication and an addition each; the output layer counts, the look-up of embeddings does
/// not) and 12 x layers x width x sequence for attention, counted as if it were not causal. What
/// the decoder of a t5 does for `decoder_sequence` tokens is divided among those of its encoder.
/// Of an ncf: for each pair, 6 for each weight of its tower.
/// Source: Chowdhery et al. 2022, appendix B.
double
flops_per_token(const Options& options, std::int64_t sequence, std::int64_t decoder_sequence = 0);

/// A model that has no name of its own: family, parameters and sample follow from its options.
Preset preset_of_options(const std::string& name, const Options& options);

/// Keys of a JSON object written over a preset's options; a sample longer than the changed model
/// allows is shortened. Throws: ConfigError as the readers of options.h.
Preset with_overrides(Preset preset, const std::string& overrides);

/// A preset with keys of a JSON object written over its options; a sample
/// longer than the changed model allows is shortened.
/// Throws: ConfigError as find_preset and the readers of options.h.
Preset resolve_preset(const std::string& name, const std::string& overrides);

} // namespace tessera::models
