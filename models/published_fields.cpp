#include "models/published_fields.h"

namespace tessera::models {

namespace {

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
      "use_cache",
      "classifier_dropout"};
  return fields;
}

std::string shown(const PublishedJson& value) {
  constexpr std::size_t kLongest = 80;
  std::string text = one_line(value);
  if (text.size() > kLongest) {
    text = text.substr(0, kLongest) + "...";
  }
  return text;
}

} // namespace

[[noreturn]] void
refuse_field(const std::string& key, const PublishedJson& found, const std::string& advice) {
  throw ConfigError(str(quoted_briefly(key), ": found ", shown(found), "; ", advice));
}

std::map<std::string, PublishedJson> values_of_all(const std::string& type) {
  return {
      {"model_type", type},
      {"add_cross_attention", false},
      {"cross_attention_hidden_size", nullptr},
      {"tie_encoder_decoder", false},
      {"pruned_heads", PublishedJson::object()},
      {"chunk_size_feed_forward", 0},
      {"quantization_config", nullptr},
      {"auto_map", nullptr},
      {"use_bfloat16", false}};
}

PublishedJson options_of_fields(const PublishedJson& file, const PublishedForm& form) {
  if (!file.is_object()) {
    throw ConfigError(str("expected an object of fields such as \"", form.example, "\""));
  }
  PublishedJson options = PublishedJson::object();
  std::map<std::string, std::string> said_by; // option -> field
  PublishedJson dropout;
  bool one_dropout = true;
  for (const auto& item : file.items()) {
    const std::string& key = item.key();
    const PublishedJson& value = item.value();
    const auto field = form.options.find(key);
    const auto only = form.only_value.find(key);
    if (field != form.options.end()) {
      if (value.is_null()) {
        continue;
      }
      const auto [other, fresh] = said_by.emplace(field->second, key);
      if (!fresh && options[field->second] != value) {
        refuse_field(key, value, str("\"", other->second, "\" is the same and differs; keep one"));
      }
      options[field->second] = value;
    } else if (only != form.only_value.end()) {
      if (!value.is_null() && value != only->second) {
        refuse_field(
            key,
            value,
            str("it changes what the model computes, and only ",
                only->second.dump(),
                " is implemented"));
      }
    } else if (form.dropouts.count(key) > 0) {
      one_dropout = one_dropout && (dropout.is_null() || dropout == value);
      dropout = value;
    } else if (without_effect().count(key) == 0) {
      refuse_field(
          key,
          value,
          str("this field of ",
              form.model,
              " is not known; leave it out if it does not change what the model computes"));
    }
  }
  if (one_dropout && !dropout.is_null() && !options.contains("dropout")) {
    options["dropout"] = dropout;
  }
  return options;
}

} // namespace tessera::models
