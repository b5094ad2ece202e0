#include "models/presets.h"

#include <algorithm>
#include <functional>
#include <type_traits>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::models {

namespace {

std::int64_t count(const GptOptions& o) {
  const auto inner = o.n_inner == 0 ? 4 * o.n_embd : o.n_inner;
  const auto norm = 2 * o.n_embd;
  const auto attention = 4 * o.n_embd * (o.n_embd + 1);
  const auto mlp = 2 * o.n_embd * inner + inner + o.n_embd;
  const auto tables = (o.tie_word_embeddings ? 1 : 2) * o.vocab_size + o.n_positions;
  return tables * o.n_embd + o.n_layer * (2 * norm + attention + mlp) + norm;
}

/// Weights of one layer that take part in products.
std::int64_t product_weights(const DecoderOptions& o) {
  const std::int64_t attention =
      (2 * o.num_attention_heads + 2 * key_value_heads(o)) * head_width(o) * o.hidden_size;
  return attention + (o.architecture == "llama" ? 3 : 2) * o.hidden_size * inner_width(o);
}

std::int64_t count(const DecoderOptions& o) {
  const bool llama = o.architecture == "llama";
  const bool gptj = o.architecture == "gptj";
  const bool neo = o.architecture == "gpt_neo";
  const std::int64_t h = o.hidden_size;
  const std::int64_t queries = o.num_attention_heads * head_width(o);
  const std::int64_t keys = key_value_heads(o) * head_width(o);
  const std::int64_t norm = llama ? h : 2 * h;
  std::int64_t layer = product_weights(o) + (gptj ? 1 : 2) * norm;
  layer += o.attention_bias ? queries + 2 * keys : 0;
  layer += o.attention_bias || neo ? h : 0;
  if (llama) {
    layer += o.mlp_bias ? 2 * inner_width(o) + h : 0;
  } else {
    layer += inner_width(o) + h;
  }
  const std::int64_t tables = (o.tie_word_embeddings ? 1 : 2) * o.vocab_size * h +
                              (neo ? o.max_position_embeddings * h : 0) + (gptj ? o.vocab_size : 0);
  return tables + o.num_hidden_layers * layer + norm;
}

std::int64_t decoder_layers(const T5Options& o) {
  return o.num_decoder_layers == 0 ? o.num_layers : o.num_decoder_layers;
}

std::int64_t feed_forward_weights(const T5Options& o) {
  return (is_gated(o) ? 3 : 2) * o.d_model * o.d_ff;
}

std::int64_t count(const T5Options& o) {
  const auto attention = 4 * o.d_model * o.num_heads * o.d_kv;
  const auto feed_forward = feed_forward_weights(o);
  const auto tables = o.tie_word_embeddings ? 1 : 2;
  return tables * o.vocab_size * o.d_model +
         o.num_layers * (attention + feed_forward + 2 * o.d_model) +
         decoder_layers(o) * (2 * attention + feed_forward + 3 * o.d_model) +
         2 * (o.d_model + o.relative_attention_num_buckets * o.num_heads);
}

std::int64_t count(const BertOptions& o) {
  const auto h = o.hidden_size;
  const auto inner = o.intermediate_size == 0 ? 4 * h : o.intermediate_size;
  const auto square = h * (h + 1);
  const auto norm = 2 * h;
  const auto layer = 4 * square + 2 * h * inner + inner + h + 2 * norm;
  const auto embeddings = (o.vocab_size + o.max_position_embeddings + o.type_vocab_size) * h + norm;
  const auto masked_head = square + norm + o.vocab_size;
  // The pooler and the two classes of the next-sentence head.
  const auto pair_head = o.roberta || !o.next_sentence ? 0 : square + 2 * (h + 1);
  return embeddings + o.num_hidden_layers * layer + masked_head + pair_head;
}

/// Weights of the tower and the layer behind it.
std::int64_t product_weights(const NcfOptions& o) {
  std::int64_t total = o.factors;
  auto width = o.first_layer;
  for (std::int64_t i = 0; i < o.layers; ++i) {
    total += width * (width / 2);
    width /= 2;
  }
  return total + width;
}

std::int64_t count(const NcfOptions& o) {
  std::int64_t biases = 1;
  auto width = o.first_layer;
  for (std::int64_t i = 0; i < o.layers; ++i) {
    width /= 2;
    biases += width;
  }
  return (o.users + o.items) * (o.factors + o.first_layer / 2) + product_weights(o) + biases;
}

Preset gpt(
    std::string name,
    std::string description,
    std::int64_t vocabulary,
    std::int64_t positions,
    std::int64_t width,
    std::int64_t layers,
    std::int64_t heads,
    double dropout) {
  GptOptions o;
  o.vocab_size = vocabulary;
  o.n_positions = positions;
  o.n_embd = width;
  o.n_layer = layers;
  o.n_head = heads;
  o.dropout = dropout;
  return {std::move(name), "gpt", std::move(description), 0, o, {1, positions, 0}};
}

Preset decoder(
    std::string name,
    std::string description,
    const std::function<void(DecoderOptions&)>& set,
    const std::string& architecture) {
  DecoderOptions o = decoder_defaults(architecture);
  set(o);
  return {
      std::move(name),
      architecture,
      std::move(description),
      0,
      o,
      {1, std::min<std::int64_t>(o.max_position_embeddings, 2048), 0}};
}

void make_tiny(DecoderOptions& o) {
  o.vocab_size = 2048;
  o.max_position_embeddings = 128;
  o.hidden_size = 64;
  o.intermediate_size = o.architecture == "llama" ? 176 : 0;
  o.num_hidden_layers = 4;
  o.num_attention_heads = 4;
  o.num_key_value_heads = o.architecture == "llama" ? 2 : 0;
  o.rotary_dim = o.architecture == "gptj" || o.architecture == "gpt_neox" ? 4 : 0;
  o.window_size = o.architecture == "gpt_neo" ? 32 : o.window_size;
}

std::vector<Preset> decoders() {
  return {
      decoder("llama-tiny", "for tests", make_tiny, "llama"),
      decoder(
          "llama-mini",
          "trains on a few cores",
          [](DecoderOptions& o) {
            make_tiny(o);
            o.max_position_embeddings = 256;
            o.hidden_size = 192;
            o.intermediate_size = 512;
            o.num_hidden_layers = 6;
            o.num_attention_heads = 6;
          },
          "llama"),
      decoder(
          "llama-7b", "Touvron et al. 2023", [](DecoderOptions&) {}, "llama"),
      decoder(
          "llama2-70b",
          "Touvron et al. 2023b",
          [](DecoderOptions& o) {
            o.hidden_size = 8192;
            o.intermediate_size = 28672;
            o.num_hidden_layers = 80;
            o.num_attention_heads = 64;
            o.num_key_value_heads = 8;
            o.max_position_embeddings = 4096;
            o.norm_epsilon = 1e-5;
          },
          "llama"),
      decoder("gptj-tiny", "for tests", make_tiny, "gptj"),
      decoder(
          "gptj-6b", "Wang and Komatsuzaki 2021", [](DecoderOptions&) {}, "gptj"),
      decoder("gpt-neo-tiny", "for tests", make_tiny, "gpt_neo"),
      decoder(
          "gpt-neo-1.3b", "Black et al. 2021", [](DecoderOptions&) {}, "gpt_neo"),
      decoder("gpt-neox-tiny", "for tests", make_tiny, "gpt_neox"),
      decoder(
          "gpt-neox-20b", "Black et al. 2022", [](DecoderOptions&) {}, "gpt_neox")};
}

Preset t5(
    std::string name,
    std::string description,
    std::int64_t d_model,
    std::int64_t d_kv,
    std::int64_t d_ff,
    std::int64_t layers,
    std::int64_t heads) {
  T5Options o;
  o.d_model = d_model;
  o.d_kv = d_kv;
  o.d_ff = d_ff;
  o.num_layers = layers;
  o.num_heads = heads;
  // Span corruption of 512 tokens leaves 114 in the decoder: Raffel et al.
  // 2020, section 3.1.4.
  return {std::move(name), "t5", std::move(description), 0, o, {1, 512, 114}};
}

Preset bert(
    std::string name,
    std::string description,
    std::int64_t hidden,
    std::int64_t layers,
    std::int64_t heads) {
  BertOptions o;
  o.hidden_size = hidden;
  o.num_hidden_layers = layers;
  o.num_attention_heads = heads;
  o.intermediate_size = 4 * hidden;
  return {std::move(name), "bert", std::move(description), 0, o, {1, 512, 0}};
}

Preset roberta(
    std::string name,
    std::string description,
    std::int64_t hidden,
    std::int64_t layers,
    std::int64_t heads) {
  Preset preset = bert(std::move(name), std::move(description), hidden, layers, heads);
  auto& o = std::get<BertOptions>(preset.options);
  o.roberta = true;
  o.vocab_size = 50265;
  o.max_position_embeddings = 514;
  o.type_vocab_size = 1;
  o.pad_token_id = 1;
  o.layer_norm_eps = 1e-5;
  preset.family = "roberta";
  return preset;
}

std::vector<Preset> make_presets() {
  std::vector<Preset> list{
      gpt("gpt-tiny", "for tests", 2048, 128, 96, 3, 4, 0),
      gpt("gpt-mini", "trains on a laptop core", 2048, 256, 192, 6, 6, 0),
      gpt("gpt-small", "trains on a few cores", 2048, 512, 384, 6, 6, 0),
      gpt("gpt2", "Radford et al. 2019", 50257, 1024, 768, 12, 12, 0.1),
      gpt("gpt2-medium", "Radford et al. 2019", 50257, 1024, 1024, 24, 16, 0.1),
      gpt("gpt2-large", "Radford et al. 2019", 50257, 1024, 1280, 36, 20, 0.1),
      gpt("gpt2-xl", "Radford et al. 2019", 50257, 1024, 1600, 48, 25, 0.1),
      gpt("gpt3-6.7b", "Brown et al. 2020", 50257, 2048, 4096, 32, 32, 0),
      gpt("gpt3-175b", "Brown et al. 2020", 50257, 2048, 12288, 96, 96, 0),
      t5("t5-tiny", "for tests", 64, 16, 128, 2, 4),
      t5("t5-small", "Raffel et al. 2020", 512, 64, 2048, 6, 8),
      t5("t5-base", "Raffel et al. 2020", 768, 64, 3072, 12, 12),
      t5("t5-large", "Raffel et al. 2020", 1024, 64, 4096, 24, 16),
      t5("t5-3b", "Raffel et al. 2020", 1024, 128, 16384, 24, 32),
      t5("t5-11b", "Raffel et al. 2020", 1024, 128, 65536, 24, 128),
      bert("bert-tiny", "for tests", 64, 2, 4),
      bert("bert-base", "Devlin et al. 2019", 768, 12, 12),
      bert("bert-large", "Devlin et al. 2019", 1024, 24, 16),
      bert("bert-10b", "Karakus et al. 2021, table 1", 2560, 127, 40),
      roberta("roberta-base", "Liu et al. 2019", 768, 12, 12),
      roberta("roberta-large", "Liu et al. 2019", 1024, 24, 16),
      roberta("roberta-10b", "Karakus et al. 2021, table 1", 4096, 48, 32),
      {"ncf", "ncf", "He et al. 2017, MovieLens 20M", 0, NcfOptions{}, {256}},
  };
  for (Preset& preset : decoders()) {
    list.push_back(std::move(preset));
  }
  for (auto& preset : list) {
    if (preset.name == "t5-tiny" || preset.name == "bert-tiny") {
      // Small, and without dropout so that runs can be compared.
      std::visit(
          [](auto& o) {
            using T = std::decay_t<decltype(o)>;
            if constexpr (std::is_same_v<T, T5Options>) {
              o.vocab_size = 2048;
              o.dropout_rate = 0;
            } else if constexpr (std::is_same_v<T, BertOptions>) {
              o.vocab_size = 2048;
              o.max_position_embeddings = 128;
              o.hidden_dropout_prob = 0;
              o.attention_probs_dropout_prob = 0;
            }
          },
          preset.options);
      preset.sample.sequence = 128;
      preset.sample.decoder_sequence = preset.family == "t5" ? 32 : 0;
    }
    preset.parameters = count_parameters(preset.options);
  }
  return list;
}

} // namespace

std::int64_t count_parameters(const Options& options) {
  return std::visit([](const auto& o) { return count(o); }, options);
}

std::optional<LanguageModelSizes> language_model_sizes(const Options& options) {
  if (const auto* gpt = std::get_if<GptOptions>(&options)) {
    const std::int64_t inner = gpt->n_inner == 0 ? 4 * gpt->n_embd : gpt->n_inner;
    return LanguageModelSizes{
        gpt->vocab_size,
        gpt->n_positions,
        gpt->n_layer,
        gpt->n_embd,
        gpt->n_embd,
        gpt->n_layer * (4 * gpt->n_embd * gpt->n_embd + 2 * gpt->n_embd * inner),
        "n_positions"};
  }
  if (const auto* decoder = std::get_if<DecoderOptions>(&options)) {
    return LanguageModelSizes{
        decoder->vocab_size,
        decoder->max_position_embeddings,
        decoder->num_hidden_layers,
        decoder->hidden_size,
        decoder->num_attention_heads * head_width(*decoder),
        decoder->num_hidden_layers * product_weights(*decoder),
        "max_position_embeddings"};
  }
  if (const auto* bert = std::get_if<BertOptions>(&options)) {
    const std::int64_t h = bert->hidden_size;
    const std::int64_t inner = bert->intermediate_size == 0 ? 4 * h : bert->intermediate_size;
    const std::int64_t reserved = bert->roberta ? bert->pad_token_id + 1 : 0;
    return LanguageModelSizes{
        bert->vocab_size,
        bert->max_position_embeddings - reserved,
        bert->num_hidden_layers,
        h,
        h,
        // The masked head has a product in front of the output layer.
        bert->num_hidden_layers * (4 * h * h + 2 * h * inner) + h * h,
        "max_position_embeddings",
        reserved};
  }
  if (const auto* t5 = std::get_if<T5Options>(&options)) {
    const std::int64_t heads = t5->num_heads * t5->d_kv;
    return LanguageModelSizes{
        t5->vocab_size,
        0,
        t5->num_layers + decoder_layers(*t5),
        t5->d_model,
        heads,
        t5->num_layers * (4 * t5->d_model * heads + feed_forward_weights(*t5))};
  }
  return std::nullopt;
}

bool continues_a_text(const Options& options) {
  return std::holds_alternative<GptOptions>(options) ||
         std::holds_alternative<DecoderOptions>(options);
}

double
flops_per_token(const Options& options, std::int64_t sequence, std::int64_t decoder_sequence) {
  if (const auto* ncf = std::get_if<NcfOptions>(&options)) {
    return 6 * static_cast<double>(product_weights(*ncf));
  }
  const auto sizes = language_model_sizes(options);
  TESSERA_CHECK(sizes.has_value());
  const auto length = static_cast<double>(sequence);
  const auto head = static_cast<double>(sizes->vocabulary) * static_cast<double>(sizes->width);
  const auto attention = 12 * static_cast<double>(sizes->attention_width);
  const auto weights = static_cast<double>(sizes->layer_weights);
  const auto* t5 = std::get_if<T5Options>(&options);
  if (t5 == nullptr) {
    return 6 * (weights + head) + attention * static_cast<double>(sizes->layers) * length;
  }
  const auto targets = static_cast<double>(decoder_sequence);
  const auto square = static_cast<double>(t5->d_model * sizes->attention_width);
  const auto feed_forward = static_cast<double>(feed_forward_weights(*t5));
  const auto layers = static_cast<double>(decoder_layers(*t5));
  // Of a sample. Keys and values of the second attention are of the encoder's tokens.
  const double encoder =
      (6 * weights + attention * static_cast<double>(t5->num_layers) * length) * length;
  const double decoder =
      6 * layers * ((6 * square + feed_forward) * targets + 2 * square * length) +
      attention * layers * targets * (targets + length);
  return (encoder + decoder + 6 * head * targets) / length;
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> list = make_presets();
  return list;
}

const Preset& find_preset(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& preset : presets()) {
    if (preset.name == name) {
      return preset;
    }
    names.push_back(preset.name);
  }
  throw ConfigError(
      str("there is no model \"",
          name,
          "\"; the nearest is \"",
          nearest(name, names),
          "\", and `tessera partition --list` names all"));
}

Preset preset_of_options(const std::string& name, const Options& options) {
  Preset preset;
  preset.name = name;
  preset.options = options;
  if (std::holds_alternative<GptOptions>(options)) {
    preset.family = "gpt";
  } else if (std::holds_alternative<T5Options>(options)) {
    preset.family = "t5";
  } else if (std::holds_alternative<NcfOptions>(options)) {
    preset.family = "ncf";
  }
  constexpr std::int64_t kLongestSample = 1024;
  preset.sample.sequence = kLongestSample;
  if (preset.family == "t5") {
    preset.sample = find_preset("t5-small").sample;
  }
  return with_overrides(preset, "{}");
}

Preset resolve_preset(const std::string& name, const std::string& overrides) {
  return with_overrides(find_preset(name), overrides);
}

Preset with_overrides(Preset preset, const std::string& overrides) {
  std::visit(
      [&](auto& o) {
        using T = std::decay_t<decltype(o)>;
        auto& sequence = preset.sample.sequence;
        if constexpr (std::is_same_v<T, GptOptions>) {
          o = gpt_options(overrides, o);
          sequence = std::min(sequence, o.n_positions);
        } else if constexpr (std::is_same_v<T, DecoderOptions>) {
          o = decoder_options(overrides, o);
          sequence = std::min(sequence, o.max_position_embeddings);
          preset.family = o.architecture;
        } else if constexpr (std::is_same_v<T, T5Options>) {
          o = t5_options(overrides, o);
        } else if constexpr (std::is_same_v<T, BertOptions>) {
          o = bert_options(overrides, o);
          const auto reserved = o.roberta ? o.pad_token_id + 1 : 0;
          sequence = std::min(sequence, o.max_position_embeddings - reserved);
          preset.family = o.roberta ? "roberta" : "bert";
        } else {
          o = ncf_options(overrides, o);
        }
      },
      preset.options);
  preset.parameters = count_parameters(preset.options);
  return preset;
}

} // namespace tessera::models
