#include "models/options.h"

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "tessera/base/json/read.h"
#include "tessera/base/json/write.h"

#include "models/activation_names.h"

namespace tessera::models {

namespace {

constexpr auto kOptional = form::Presence::kOptional; // a preset says the rest

template <typename Visit>
void number(Visit& visit, const char* name, double& value, double least = 0) {
  visit({.name = name, .bounds = form::at_least(least), .presence = kOptional}, value);
}

// Far above every model there is. Beyond it the product of two of them has more bytes than a number
// of 64 bits counts, and libtorch fails in the middle of a model.
constexpr double kWidest = 1 << 20;
constexpr double kMostRows = std::numeric_limits<std::int32_t>::max();

template <typename Visit>
void width(Visit& visit, const char* name, std::int64_t& value, double least = 1) {
  visit({.name = name, .bounds = form::between(least, kWidest), .presence = kOptional}, value);
}

/// Of a table, or what counts them: words, positions, users.
template <typename Visit>
void rows(Visit& visit, const char* name, std::int64_t& value, double least = 1) {
  visit({.name = name, .bounds = form::between(least, kMostRows), .presence = kOptional}, value);
}

template <typename Visit, typename T>
void layers(Visit& visit, const char* name, T& value, double least = 1) {
  const auto most = static_cast<double>(kMostLayers);
  visit({.name = name, .bounds = form::between(least, most), .presence = kOptional}, value);
}

template <typename Visit>
void share(Visit& visit, const char* name, double& value) {
  visit({.name = name, .bounds = form::between(0, 1), .presence = kOptional}, value);
}

template <typename Visit>
void flag(Visit& visit, const char* name, bool& value) {
  visit({.name = name, .presence = kOptional}, value);
}

} // namespace

template <typename Visit>
void describe(Visit& visit, GptOptions& o) {
  rows(visit, "vocab_size", o.vocab_size, 2);
  rows(visit, "n_positions", o.n_positions);
  width(visit, "n_embd", o.n_embd);
  layers(visit, "n_layer", o.n_layer);
  width(visit, "n_head", o.n_head);
  width(visit, "n_inner", o.n_inner, 0);
  share(visit, "dropout", o.dropout);
  share(visit, "layer_norm_epsilon", o.layer_norm_epsilon);
  number(visit, "initializer_range", o.initializer_range);
  visit(
      {.name = "activation_function", .presence = kOptional, .choices = activation_names()},
      o.activation_function);
  flag(visit, "tie_word_embeddings", o.tie_word_embeddings);
  flag(visit, "scale_attn_weights", o.scale_attn_weights);
  flag(visit, "scale_attn_by_inverse_layer_idx", o.scale_attn_by_inverse_layer_idx);
}

template <typename Visit>
void describe(Visit& visit, DecoderOptions& o) {
  visit(
      {.name = "architecture",
       .presence = kOptional,
       .choices = {"llama", "gptj", "gpt_neo", "gpt_neox"}},
      o.architecture);
  rows(visit, "vocab_size", o.vocab_size, 2);
  width(visit, "hidden_size", o.hidden_size);
  width(visit, "intermediate_size", o.intermediate_size, 0);
  layers(visit, "num_hidden_layers", o.num_hidden_layers);
  width(visit, "num_attention_heads", o.num_attention_heads);
  width(visit, "num_key_value_heads", o.num_key_value_heads, 0);
  width(visit, "head_dim", o.head_dim, 0);
  rows(visit, "max_position_embeddings", o.max_position_embeddings);
  visit({.name = "hidden_act", .presence = kOptional, .choices = activation_names()}, o.hidden_act);
  share(visit, "norm_epsilon", o.norm_epsilon);
  number(visit, "initializer_range", o.initializer_range);
  share(visit, "dropout", o.dropout);
  flag(visit, "tie_word_embeddings", o.tie_word_embeddings);
  flag(visit, "attention_bias", o.attention_bias);
  flag(visit, "mlp_bias", o.mlp_bias);
  number(visit, "rope_theta", o.rope_theta, 1);
  width(visit, "rotary_dim", o.rotary_dim, 0);
  rows(visit, "window_size", o.window_size);
  flag(visit, "use_parallel_residual", o.use_parallel_residual);
  flag(visit, "flash_attention", o.flash_attention);
}

template <typename Visit>
void describe(Visit& visit, T5Options& o) {
  rows(visit, "vocab_size", o.vocab_size, 2);
  width(visit, "d_model", o.d_model);
  width(visit, "d_kv", o.d_kv);
  width(visit, "d_ff", o.d_ff);
  layers(visit, "num_layers", o.num_layers);
  layers(visit, "num_decoder_layers", o.num_decoder_layers, 0);
  width(visit, "num_heads", o.num_heads);
  rows(visit, "relative_attention_num_buckets", o.relative_attention_num_buckets, 4);
  rows(visit, "relative_attention_max_distance", o.relative_attention_max_distance);
  share(visit, "dropout_rate", o.dropout_rate);
  share(visit, "layer_norm_epsilon", o.layer_norm_epsilon);
  number(visit, "initializer_factor", o.initializer_factor);
  rows(visit, "decoder_start_token_id", o.decoder_start_token_id, 0);
  visit(
      {.name = "feed_forward_proj",
       .presence = kOptional,
       .choices = {"relu", "gated-gelu", "gated-silu"}},
      o.feed_forward_proj);
  flag(visit, "tie_word_embeddings", o.tie_word_embeddings);
  flag(visit, "scale_decoder_outputs", o.scale_decoder_outputs);
}

template <typename Visit>
void describe(Visit& visit, BertOptions& o) {
  rows(visit, "vocab_size", o.vocab_size, 2);
  width(visit, "hidden_size", o.hidden_size);
  layers(visit, "num_hidden_layers", o.num_hidden_layers);
  width(visit, "num_attention_heads", o.num_attention_heads);
  width(visit, "intermediate_size", o.intermediate_size, 0);
  rows(visit, "max_position_embeddings", o.max_position_embeddings);
  rows(visit, "type_vocab_size", o.type_vocab_size);
  rows(visit, "pad_token_id", o.pad_token_id, 0);
  share(visit, "hidden_dropout_prob", o.hidden_dropout_prob);
  share(visit, "attention_probs_dropout_prob", o.attention_probs_dropout_prob);
  share(visit, "layer_norm_eps", o.layer_norm_eps);
  number(visit, "initializer_range", o.initializer_range);
  flag(visit, "roberta", o.roberta);
  flag(visit, "next_sentence", o.next_sentence);
}

template <typename Visit>
void describe(Visit& visit, NcfOptions& o) {
  rows(visit, "users", o.users);
  rows(visit, "items", o.items);
  width(visit, "factors", o.factors);
  width(visit, "first_layer", o.first_layer, 2);
  visit({.name = "layers", .bounds = form::between(1, 30), .presence = kOptional}, o.layers);
  share(visit, "dropout", o.dropout);
}

namespace {

template <typename Options>
Options read_options(const std::string& text, Options options, const char* family) {
  try {
    OrderedJson object = parse_json(text, "model options");
    // null stands for the default in published configurations.
    OrderedJson said = object.is_object() ? OrderedJson::object() : object;
    for (const auto& item : object.items()) {
      if (object.is_object() && !item.value().is_null()) {
        said[item.key()] = item.value();
      }
    }
    form::Faults faults(str("model options of the ", family, " family"), form::Wording::kWrite);
    form::read(said, options, faults);
    return options;
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
}

void check_heads(
    const char* width_key,
    std::int64_t width,
    const char* heads_key,
    std::int64_t heads) {
  if (width % heads != 0) {
    throw ConfigError(
        str("model options: ",
            width_key,
            " = ",
            width,
            " is not a multiple of ",
            heads_key,
            " = ",
            heads));
  }
}

/// Options that an architecture has not are those of its defaults.
void check_architecture(const DecoderOptions& o) {
  const DecoderOptions unset;
  const std::string& is = o.architecture;
  const auto only = [&](const char* key, bool changed, std::initializer_list<const char*> of) {
    if (!changed || std::find(of.begin(), of.end(), is) != of.end()) {
      return;
    }
    std::string names;
    for (const char* name : of) {
      names += str(names.empty() ? "" : ", ", name);
    }
    throw ConfigError(
        str("model options: ", key, " is an option of ", names, ", not of ", is, "; leave it out"));
  };
  only("num_key_value_heads", o.num_key_value_heads != unset.num_key_value_heads, {"llama"});
  only("head_dim", o.head_dim != unset.head_dim, {"llama"});
  only("mlp_bias", o.mlp_bias != unset.mlp_bias, {"llama"});
  only("attention_bias", o.attention_bias != unset.attention_bias, {"llama", "gpt_neox"});
  only("rotary_dim", o.rotary_dim != unset.rotary_dim, {"gptj", "gpt_neox"});
  only("window_size", o.window_size != unset.window_size, {"gpt_neo"});
  only("rope_theta", o.rope_theta != unset.rope_theta, {"llama", "gptj", "gpt_neox"});
  only(
      "use_parallel_residual",
      o.use_parallel_residual != unset.use_parallel_residual,
      {"gpt_neox"});
  only(
      "tie_word_embeddings",
      o.tie_word_embeddings != unset.tie_word_embeddings,
      {"llama", "gpt_neo", "gpt_neox"});
}

} // namespace

DecoderOptions decoder_defaults(const std::string& architecture) {
  DecoderOptions o;
  o.architecture = architecture;
  if (architecture == "llama") {
    return o;
  }
  o.intermediate_size = 0;
  o.norm_epsilon = 1e-5;
  o.hidden_act = "gelu_new";
  if (architecture == "gptj") {
    o.vocab_size = 50400;
    o.num_hidden_layers = 28;
    o.num_attention_heads = 16;
    o.rotary_dim = 64;
  } else if (architecture == "gpt_neo") {
    o.vocab_size = 50257;
    o.hidden_size = 2048;
    o.num_hidden_layers = 24;
    o.num_attention_heads = 16;
    o.tie_word_embeddings = true;
  } else {
    o.vocab_size = 50432;
    o.hidden_size = 6144;
    o.intermediate_size = 24576;
    o.num_hidden_layers = 44;
    o.num_attention_heads = 64;
    o.hidden_act = "gelu";
    o.attention_bias = true;
    o.rotary_dim = 24;
  }
  return o;
}

bool is_gated(const T5Options& o) {
  return o.feed_forward_proj.starts_with("gated-");
}

std::string activation_of(const T5Options& o) {
  // transformers takes GPT-2's gelu where version 1.1 says "gelu".
  return o.feed_forward_proj == "gated-gelu"   ? "gelu_new"
         : o.feed_forward_proj == "gated-silu" ? "silu"
                                               : o.feed_forward_proj;
}

std::int64_t inner_width(const DecoderOptions& o) {
  return o.intermediate_size == 0 ? 4 * o.hidden_size : o.intermediate_size;
}

std::int64_t head_width(const DecoderOptions& o) {
  return o.head_dim == 0 ? o.hidden_size / o.num_attention_heads : o.head_dim;
}

std::int64_t key_value_heads(const DecoderOptions& o) {
  return o.num_key_value_heads == 0 ? o.num_attention_heads : o.num_key_value_heads;
}

DecoderOptions decoder_options(const std::string& json, DecoderOptions defaults) {
  DecoderOptions options = read_options(json, defaults, "decoder");
  check_architecture(options);
  if (options.head_dim == 0) {
    check_heads(
        "hidden_size", options.hidden_size, "num_attention_heads", options.num_attention_heads);
  }
  check_heads(
      "num_attention_heads",
      options.num_attention_heads,
      "num_key_value_heads",
      key_value_heads(options));
  const std::int64_t turned = options.rotary_dim == 0 ? head_width(options) : options.rotary_dim;
  if (options.architecture != "gpt_neo" && (turned % 2 != 0 || turned > head_width(options))) {
    throw ConfigError(
        str("model options: ",
            turned,
            " channels of a head turn with the position (rotary_dim); it should be an even number "
            "of at most the head's width, ",
            head_width(options)));
  }
  return options;
}

GptOptions gpt_options(const std::string& json, GptOptions defaults) {
  GptOptions options = read_options(json, defaults, "gpt");
  check_heads("n_embd", options.n_embd, "n_head", options.n_head);
  return options;
}

T5Options t5_options(const std::string& json, T5Options defaults) {
  return read_options(json, defaults, "t5");
}

BertOptions bert_options(const std::string& json, BertOptions defaults) {
  BertOptions options = read_options(json, defaults, "bert");
  check_heads(
      "hidden_size", options.hidden_size, "num_attention_heads", options.num_attention_heads);
  return options;
}

NcfOptions ncf_options(const std::string& json, NcfOptions defaults) {
  NcfOptions options = read_options(json, defaults, "ncf");
  if (options.first_layer % (std::int64_t{1} << options.layers) != 0) {
    throw ConfigError(
        str("model options: first_layer = ",
            options.first_layer,
            " cannot be halved ",
            options.layers,
            " times (layers)"));
  }
  return options;
}

std::string to_json(const GptOptions& options) {
  return form::write(options).dump();
}

std::string to_json(const DecoderOptions& options) {
  return form::write(options).dump();
}

std::string to_json(const T5Options& options) {
  return form::write(options).dump();
}

std::string to_json(const BertOptions& options) {
  return form::write(options).dump();
}

std::string to_json(const NcfOptions& options) {
  return form::write(options).dump();
}

} // namespace tessera::models
