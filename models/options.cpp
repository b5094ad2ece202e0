#include "models/options.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "tessera/base/json/parse.h"
#include "tessera/base/json_fields.h"
#include "tessera/base/text.h"

#include "models/activation_names.h"

namespace tessera::models {

namespace {

using Json = nlohmann::ordered_json;

// Every field once: (key, value, smallest allowed, largest allowed).
constexpr double kNoLimit = 1e12;

template <typename Visit>
void fields(GptOptions& o, Visit visit) {
  visit("vocab_size", o.vocab_size, 2, kNoLimit);
  visit("n_positions", o.n_positions, 1, kNoLimit);
  visit("n_embd", o.n_embd, 1, kNoLimit);
  visit("n_layer", o.n_layer, 1, kNoLimit);
  visit("n_head", o.n_head, 1, kNoLimit);
  visit("n_inner", o.n_inner, 0, kNoLimit);
  visit("dropout", o.dropout, 0, 1);
  visit("layer_norm_epsilon", o.layer_norm_epsilon, 0, 1);
  visit("initializer_range", o.initializer_range, 0, kNoLimit);
  visit("activation_function", o.activation_function, 0, 0);
  visit("tie_word_embeddings", o.tie_word_embeddings, 0, 1);
  visit("scale_attn_weights", o.scale_attn_weights, 0, 1);
  visit("scale_attn_by_inverse_layer_idx", o.scale_attn_by_inverse_layer_idx, 0, 1);
}

template <typename Visit>
void fields(T5Options& o, Visit visit) {
  visit("vocab_size", o.vocab_size, 2, kNoLimit);
  visit("d_model", o.d_model, 1, kNoLimit);
  visit("d_kv", o.d_kv, 1, kNoLimit);
  visit("d_ff", o.d_ff, 1, kNoLimit);
  visit("num_layers", o.num_layers, 1, kNoLimit);
  visit("num_decoder_layers", o.num_decoder_layers, 0, kNoLimit);
  visit("num_heads", o.num_heads, 1, kNoLimit);
  visit("relative_attention_num_buckets", o.relative_attention_num_buckets, 4, kNoLimit);
  visit("relative_attention_max_distance", o.relative_attention_max_distance, 1, kNoLimit);
  visit("dropout_rate", o.dropout_rate, 0, 1);
  visit("layer_norm_epsilon", o.layer_norm_epsilon, 0, 1);
  visit("initializer_factor", o.initializer_factor, 0, kNoLimit);
  visit("decoder_start_token_id", o.decoder_start_token_id, 0, kNoLimit);
}

template <typename Visit>
void fields(BertOptions& o, Visit visit) {
  visit("vocab_size", o.vocab_size, 2, kNoLimit);
  visit("hidden_size", o.hidden_size, 1, kNoLimit);
  visit("num_hidden_layers", o.num_hidden_layers, 1, kNoLimit);
  visit("num_attention_heads", o.num_attention_heads, 1, kNoLimit);
  visit("intermediate_size", o.intermediate_size, 0, kNoLimit);
  visit("max_position_embeddings", o.max_position_embeddings, 1, kNoLimit);
  visit("type_vocab_size", o.type_vocab_size, 1, kNoLimit);
  visit("pad_token_id", o.pad_token_id, 0, kNoLimit);
  visit("hidden_dropout_prob", o.hidden_dropout_prob, 0, 1);
  visit("attention_probs_dropout_prob", o.attention_probs_dropout_prob, 0, 1);
  visit("layer_norm_eps", o.layer_norm_eps, 0, 1);
  visit("initializer_range", o.initializer_range, 0, kNoLimit);
  visit("roberta", o.roberta, 0, 1);
}

template <typename Visit>
void fields(NcfOptions& o, Visit visit) {
  visit("users", o.users, 1, kNoLimit);
  visit("items", o.items, 1, kNoLimit);
  visit("factors", o.factors, 1, kNoLimit);
  visit("first_layer", o.first_layer, 2, kNoLimit);
  visit("layers", o.layers, 1, 30);
  visit("dropout", o.dropout, 0, 1);
}

[[noreturn]] void
refuse_key(const std::string& key, const std::vector<std::string>& known, const char* family) {
  throw ConfigError(
      str("model option \"",
          key,
          "\" is not one of the ",
          family,
          " family; the nearest is \"",
          nearest(key, known),
          "\""));
}

void read_activation(const Json& found, const char* key, std::string& value) {
  const auto& names = activation_names();
  if (found.is_string() &&
      std::find(names.begin(), names.end(), found.get<std::string>()) != names.end()) {
    value = found.get<std::string>();
    return;
  }
  std::string list;
  for (const std::string& name : names) {
    list += (list.empty() ? "" : ", ") + name;
  }
  throw ConfigError(
      str("model option \"", key, "\": found ", one_line(found), ", write one of ", list));
}

template <typename T>
void read_field(const Json& found, const char* key, T& value, double low, double high) {
  const auto refuse = [&](const char* wanted) {
    throw ConfigError(
        str("model option \"",
            key,
            "\": found ",
            one_line(found),
            ", write ",
            wanted,
            " of ",
            low,
            " or more",
            high < kNoLimit ? str(", at most ", high) : ""));
  };
  if constexpr (std::is_same_v<T, bool>) {
    if (!found.is_boolean()) {
      throw ConfigError(
          str("model option \"", key, "\": found ", one_line(found), ", write true or false"));
    }
    value = found.get<bool>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    read_activation(found, key, value);
  } else {
    constexpr bool integral = std::is_integral_v<T>;
    if (integral ? !found.is_number_integer() : !found.is_number()) {
      refuse(integral ? "an integer" : "a number");
    }
    const T number = found.get<T>();
    if (static_cast<double>(number) < low || static_cast<double>(number) > high) {
      refuse(integral ? "an integer" : "a number");
    }
    value = number;
  }
}

template <typename Options>
Options read_options(const std::string& text, Options options, const char* family) {
  Json json;
  try {
    json = parse_json(text, "model options");
  } catch (const JsonError& error) {
    throw ConfigError(error.what());
  }
  if (!json.is_object()) {
    throw ConfigError(str("model options: expected a JSON object, found: ", text.substr(0, 80)));
  }
  std::vector<std::string> known;
  fields(options, [&](const char* key, auto& value, double low, double high) {
    known.emplace_back(key);
    // null stands for the default in published configurations.
    if (json.contains(key) && !json[key].is_null()) {
      read_field(json[key], key, value, low, high);
    }
  });
  for (const auto& item : json.items()) {
    if (std::find(known.begin(), known.end(), item.key()) == known.end()) {
      refuse_key(item.key(), known, family);
    }
  }
  return options;
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

template <typename Options>
std::string write_options(Options options) {
  Json json = Json::object();
  fields(options, [&](const char* key, const auto& value, double, double) { json[key] = value; });
  return json.dump();
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
  return write_options(options);
}

std::string to_json(const T5Options& options) {
  return write_options(options);
}

std::string to_json(const BertOptions& options) {
  return write_options(options);
}

std::string to_json(const NcfOptions& options) {
  return write_options(options);
}

} // namespace tessera::models
