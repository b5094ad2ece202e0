#include "models/published_config.h"

#include <map>
#include <set>

#include "tessera/base/json/parse.h"

namespace tessera::models {

namespace {

using Json = nlohmann::ordered_json;

// Names of transformers -> names of options.
const std::map<std::string, std::string>& gpt2_fields() {
  static const std::map<std::string, std::string> fields = {
      {"vocab_size", "vocab_size"},
      {"n_positions", "n_positions"},
      {"max_position_embeddings", "n_positions"},
      {"n_embd", "n_embd"},
      {"hidden_size", "n_embd"},
      {"n_layer", "n_layer"},
      {"num_hidden_layers", "n_layer"},
      {"n_head", "n_head"},
      {"num_attention_heads", "n_head"},
      {"n_inner", "n_inner"},
      {"activation_function", "activation_function"},
      {"layer_norm_epsilon", "layer_norm_epsilon"},
      {"initializer_range", "initializer_range"},
      {"tie_word_embeddings", "tie_word_embeddings"},
      {"scale_attn_weights", "scale_attn_weights"},
      {"scale_attn_by_inverse_layer_idx", "scale_attn_by_inverse_layer_idx"},
      {"dropout", "dropout"}};
  return fields;
}

const std::set<std::string>& dropout_fields() {
  static const std::set<std::string> fields = {"embd_pdrop", "attn_pdrop", "resid_pdrop"};
  return fields;
}

// They change the mathematics, and one value of each is implemented. null is
// that value too.
const std::map<std::string, Json>& only_value() {
  static const std::map<std::string, Json> values = {
      {"model_type", "gpt2"},
      {"add_cross_attention", false},
      {"cross_attention_hidden_size", nullptr},
      {"is_encoder_decoder", false},
      {"tie_encoder_decoder", false},
      {"pruned_heads", Json::object()},
      {"chunk_size_feed_forward", 0},
      {"quantization_config", nullptr},
      {"rope_scaling", nullptr},
      {"rope_parameters", nullptr},
      {"use_bfloat16", false},
      {"auto_map", nullptr},
      {"sliding_window", nullptr}};
  return values;
}

// They do not change the logits of an evaluation in f32. Among them is
// reorder_and_upcast_attn: the same products and the same softmax, of f32
// numbers in either order.
const std::set<std::string>& without_effect() {
  static const std::set<std::string> fields = {
      "_name_or_path",
      "_attn_implementation",
      "_attn_implementation_autoset",
      "_commit_hash",
      "architectures",
      "attn_implementation",
      "begin_suppress_tokens",
      "bad_words_ids",
      "bos_token_id",
      "decoder_start_token_id",
      "diversity_penalty",
      "do_sample",
      "dtype",
      "early_stopping",
      "encoder_no_repeat_ngram_size",
      "eos_token_id",
      "exponential_decay_length_penalty",
      "finetuning_task",
      "forced_bos_token_id",
      "forced_eos_token_id",
      "gradient_checkpointing",
      "id2label",
      "is_decoder",
      "keys_to_ignore_at_inference",
      "label2id",
      "length_penalty",
      "max_length",
      "min_length",
      "n_ctx",
      "name_or_path",
      "no_repeat_ngram_size",
      "num_beam_groups",
      "num_beams",
      "num_labels",
      "num_return_sequences",
      "output_attentions",
      "output_hidden_states",
      "output_past",
      "output_scores",
      "pad_token_id",
      "prefix",
      "problem_type",
      "remove_invalid_values",
      "reorder_and_upcast_attn",
      "repetition_penalty",
      "return_dict",
      "return_dict_in_generate",
      "sep_token_id",
      "summary_activation",
      "summary_first_dropout",
      "summary_proj_to_labels",
      "summary_type",
      "summary_use_proj",
      "suppress_tokens",
      "task_specific_params",
      "temperature",
      "tf_legacy_loss",
      "tokenizer_class",
      "top_k",
      "top_p",
      "torch_dtype",
      "torchscript",
      "transformers_version",
      "typical_p",
      "use_cache"};
  return fields;
}

std::string shown(const Json& value) {
  constexpr std::size_t kLongest = 80;
  std::string text = one_line(value);
  if (text.size() > kLongest) {
    text = text.substr(0, kLongest) + "...";
  }
  return text;
}

[[noreturn]] void refuse(const std::string& key, const Json& found, const std::string& advice) {
  throw ConfigError(str(quoted_briefly(key), ": found ", shown(found), "; ", advice));
}

GptOptions options_of(const Json& file) {
  if (!file.is_object()) {
    throw ConfigError("expected an object of fields such as \"n_layer\"");
  }
  Json options = Json::object();
  std::map<std::string, std::string> said_by; // option -> field
  Json dropout;
  bool one_dropout = true;
  for (const auto& item : file.items()) {
    const std::string& key = item.key();
    const Json& value = item.value();
    const auto field = gpt2_fields().find(key);
    const auto only = only_value().find(key);
    if (field != gpt2_fields().end()) {
      if (value.is_null()) {
        continue;
      }
      const auto [other, fresh] = said_by.emplace(field->second, key);
      if (!fresh && options[field->second] != value) {
        refuse(key, value, str("\"", other->second, "\" is the same and differs; keep one"));
      }
      options[field->second] = value;
    } else if (only != only_value().end()) {
      if (!value.is_null() && value != only->second) {
        refuse(
            key,
            value,
            str("it changes what the model computes, and only ",
                only->second.dump(),
                " is implemented"));
      }
    } else if (dropout_fields().count(key) > 0) {
      one_dropout = one_dropout && (dropout.is_null() || dropout == value);
      dropout = value;
    } else if (without_effect().count(key) == 0) {
      refuse(
          key,
          value,
          "this field of a GPT-2 is not known; leave it out if it does not change what the model "
          "computes");
    }
  }
  if (one_dropout && !dropout.is_null() && !options.contains("dropout")) {
    options["dropout"] = dropout;
  }
  return gpt_options(options.dump());
}

} // namespace

GptOptions gpt_from_published(const std::string& text, const std::string& origin) {
  try {
    return options_of(parse_json(text, ""));
  } catch (const Error& error) {
    throw ConfigError(str(origin, ": ", error.what()));
  }
}

std::string to_published(const GptOptions& options, std::optional<std::int32_t> end_of_document) {
  Json file;
  file["architectures"] = Json::array({"GPT2LMHeadModel"});
  file["model_type"] = "gpt2";
  file["vocab_size"] = options.vocab_size;
  file["n_positions"] = options.n_positions;
  file["n_embd"] = options.n_embd;
  file["n_layer"] = options.n_layer;
  file["n_head"] = options.n_head;
  // null is four times n_embd there; 0 is a width of 0.
  file["n_inner"] = options.n_inner == 0 ? Json(nullptr) : Json(options.n_inner);
  file["activation_function"] = options.activation_function;
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    file[key] = options.dropout;
  }
  file["layer_norm_epsilon"] = options.layer_norm_epsilon;
  file["initializer_range"] = options.initializer_range;
  file["scale_attn_weights"] = options.scale_attn_weights;
  file["scale_attn_by_inverse_layer_idx"] = options.scale_attn_by_inverse_layer_idx;
  file["reorder_and_upcast_attn"] = false;
  file["tie_word_embeddings"] = options.tie_word_embeddings;
  // The defaults there are those of GPT-2's own vocabulary, outside of others.
  const Json end = end_of_document ? Json(*end_of_document) : Json(nullptr);
  file["bos_token_id"] = end;
  file["eos_token_id"] = end;
  return file.dump(2) + "\n";
}

} // namespace tessera::models
