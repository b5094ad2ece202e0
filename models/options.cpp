#include "models/options.h"

#include "tessera/base/json/read.h"
#include "tessera/base/json/write.h"

#include "models/activation_names.h"

namespace tessera::models {

namespace {

constexpr auto kOptional = form::Presence::kOptional; // a preset says the rest

template <typename Visit, typename T>
void size(Visit& visit, const char* name, T& value, double least = 1) {
  visit({.name = name, .bounds = form::at_least(least), .presence = kOptional}, value);
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
  size(visit, "vocab_size", o.vocab_size, 2);
  size(visit, "n_positions", o.n_positions);
  size(visit, "n_embd", o.n_embd);
  size(visit, "n_layer", o.n_layer);
  size(visit, "n_head", o.n_head);
  size(visit, "n_inner", o.n_inner, 0);
  share(visit, "dropout", o.dropout);
  share(visit, "layer_norm_epsilon", o.layer_norm_epsilon);
  size(visit, "initializer_range", o.initializer_range, 0);
  visit(
      {.name = "activation_function", .presence = kOptional, .choices = activation_names()},
      o.activation_function);
  flag(visit, "tie_word_embeddings", o.tie_word_embeddings);
  flag(visit, "scale_attn_weights", o.scale_attn_weights);
  flag(visit, "scale_attn_by_inverse_layer_idx", o.scale_attn_by_inverse_layer_idx);
}

template <typename Visit>
void describe(Visit& visit, T5Options& o) {
  size(visit, "vocab_size", o.vocab_size, 2);
  size(visit, "d_model", o.d_model);
  size(visit, "d_kv", o.d_kv);
  size(visit, "d_ff", o.d_ff);
  size(visit, "num_layers", o.num_layers);
  size(visit, "num_decoder_layers", o.num_decoder_layers, 0);
  size(visit, "num_heads", o.num_heads);
  size(visit, "relative_attention_num_buckets", o.relative_attention_num_buckets, 4);
  size(visit, "relative_attention_max_distance", o.relative_attention_max_distance);
  share(visit, "dropout_rate", o.dropout_rate);
  share(visit, "layer_norm_epsilon", o.layer_norm_epsilon);
  size(visit, "initializer_factor", o.initializer_factor, 0);
  size(visit, "decoder_start_token_id", o.decoder_start_token_id, 0);
}

template <typename Visit>
void describe(Visit& visit, BertOptions& o) {
  size(visit, "vocab_size", o.vocab_size, 2);
  size(visit, "hidden_size", o.hidden_size);
  size(visit, "num_hidden_layers", o.num_hidden_layers);
  size(visit, "num_attention_heads", o.num_attention_heads);
  size(visit, "intermediate_size", o.intermediate_size, 0);
  size(visit, "max_position_embeddings", o.max_position_embeddings);
  size(visit, "type_vocab_size", o.type_vocab_size);
  size(visit, "pad_token_id", o.pad_token_id, 0);
  share(visit, "hidden_dropout_prob", o.hidden_dropout_prob);
  share(visit, "attention_probs_dropout_prob", o.attention_probs_dropout_prob);
  share(visit, "layer_norm_eps", o.layer_norm_eps);
  size(visit, "initializer_range", o.initializer_range, 0);
  flag(visit, "roberta", o.roberta);
}

template <typename Visit>
void describe(Visit& visit, NcfOptions& o) {
  size(visit, "users", o.users);
  size(visit, "items", o.items);
  size(visit, "factors", o.factors);
  size(visit, "first_layer", o.first_layer, 2);
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

} // namespace

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
