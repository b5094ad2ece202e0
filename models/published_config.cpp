#include "models/published_config.h"

#include <map>

#include "models/published_fields.h"

namespace tessera::models {

namespace {

using Json = PublishedJson;

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

std::map<std::string, Json> only_values() {
  auto values = values_of_all("gpt2");
  values.insert(
      {{"is_encoder_decoder", false},
       {"rope_scaling", nullptr},
       {"rope_parameters", nullptr},
       {"sliding_window", nullptr}});
  return values;
}

GptOptions options_of(const Json& file) {
  const PublishedForm form{
      "a GPT-2",
      "n_layer",
      gpt2_fields(),
      {"embd_pdrop", "attn_pdrop", "resid_pdrop"},
      only_values()};
  return gpt_options(options_of_fields(file, form).dump());
}

} // namespace

GptOptions gpt_from_published(const std::string& text, const std::string& origin) {
  return read_published(text, origin, options_of);
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
