#include <cmath>
#include <vector>

#include "models/published_config.h"
#include "models/published_fields.h"

namespace tessera::models {

namespace {

using Json = PublishedJson;
using Fields = std::map<std::string, std::string>;

Fields fields_of(const std::string& architecture) {
  Fields fields{
      {"vocab_size", "vocab_size"},
      {"hidden_size", "hidden_size"},
      {"num_hidden_layers", "num_hidden_layers"},
      {"num_attention_heads", "num_attention_heads"},
      {"max_position_embeddings", "max_position_embeddings"},
      {"initializer_range", "initializer_range"},
      {"tie_word_embeddings", "tie_word_embeddings"}};
  const auto add = [&](const Fields& more) { fields.insert(more.begin(), more.end()); };
  if (architecture == "llama") {
    add(
        {{"intermediate_size", "intermediate_size"},
         {"num_key_value_heads", "num_key_value_heads"},
         {"head_dim", "head_dim"},
         {"hidden_act", "hidden_act"},
         {"rms_norm_eps", "norm_epsilon"},
         {"attention_bias", "attention_bias"},
         {"mlp_bias", "mlp_bias"},
         {"rope_theta", "rope_theta"}});
  } else if (architecture == "gptj") {
    add(
        {{"n_positions", "max_position_embeddings"},
         {"n_embd", "hidden_size"},
         {"n_layer", "num_hidden_layers"},
         {"n_head", "num_attention_heads"},
         {"n_inner", "intermediate_size"},
         {"rotary_dim", "rotary_dim"},
         {"activation_function", "hidden_act"},
         {"layer_norm_epsilon", "norm_epsilon"}});
  } else if (architecture == "gpt_neo") {
    add(
        {{"num_layers", "num_hidden_layers"},
         {"num_heads", "num_attention_heads"},
         {"intermediate_size", "intermediate_size"},
         {"window_size", "window_size"},
         {"activation_function", "hidden_act"},
         {"layer_norm_epsilon", "norm_epsilon"}});
  } else {
    add(
        {{"intermediate_size", "intermediate_size"},
         {"hidden_act", "hidden_act"},
         {"layer_norm_eps", "norm_epsilon"},
         {"attention_bias", "attention_bias"},
         {"rotary_emb_base", "rope_theta"},
         {"rope_theta", "rope_theta"},
         {"use_parallel_residual", "use_parallel_residual"}});
  }
  return fields;
}

std::set<std::string> dropouts_of(const std::string& architecture) {
  if (architecture == "llama") {
    return {"attention_dropout"};
  }
  if (architecture == "gptj") {
    return {"resid_pdrop", "embd_pdrop", "attn_pdrop"};
  }
  if (architecture == "gpt_neo") {
    return {"resid_dropout", "embed_dropout", "attention_dropout"};
  }
  return {"attention_dropout", "hidden_dropout"};
}

std::map<std::string, Json> only_values(const std::string& architecture) {
  auto values = values_of_all(architecture);
  values.insert(
      {{"is_encoder_decoder", false},
       {"rope_scaling", nullptr},
       {"sliding_window", nullptr},
       {"pretraining_tp", 1}});
  if (architecture == "gptj") { // in the files of the first one; the class knows no other value
    values.insert({{"rotary", true}, {"scale_attn_weights", true}});
  }
  return values;
}

/// [[["global", "local"], 2]] -> global, local, global, local. Throws nlohmann's
/// exceptions for another form, and for more layers than a model may have.
Json expanded(const Json& types) {
  Json layers = Json::array();
  for (const Json& group : types) {
    for (int i = 0; i < group.at(1).get<int>(); ++i) {
      if (group.at(0).empty() || std::ssize(layers) > kMostLayers) {
        throw nlohmann::json::other_error::create(501, "no layers, or too many", &types);
      }
      for (const Json& kind : group.at(0)) {
        layers.push_back(kind);
      }
    }
  }
  return layers;
}

/// GPT-Neo's layers: global and local by turns is what is implemented, and global ones alone, which
/// are the same with a window that nothing is beyond.
void take_layers(Json& file) {
  for (const char* key : {"attention_types", "attention_layers"}) {
    const auto found = file.find(key);
    if (found == file.end() || found->is_null()) {
      continue;
    }
    bool turns = true;
    bool global = true;
    try {
      const Json layers = key == std::string("attention_types") ? expanded(*found) : *found;
      for (std::size_t i = 0; i < layers.size(); ++i) {
        turns = turns && layers.at(i) == (i % 2 == 0 ? "global" : "local");
        global = global && layers.at(i) == "global";
      }
    } catch (const nlohmann::json::exception&) {
      turns = global = false;
    }
    if (global && !turns) {
      const Json positions = file.value("max_position_embeddings", Json());
      file["window_size"] = positions.is_null()
                                ? Json(decoder_defaults("gpt_neo").max_position_embeddings)
                                : positions;
    } else if (!turns) {
      refuse_field(
          key,
          *found,
          "it says which layers see a window, and only \"global\" and \"local\" by turns, or "
          "\"global\" alone, is implemented");
    }
    file.erase(key);
  }
}

/// What newer files say of rotary positions in one field.
void spread_rope(Json& file) {
  const auto found = file.find("rope_parameters");
  if (found == file.end()) {
    return;
  }
  const Json rope = *found;
  file.erase("rope_parameters");
  if (rope.is_null()) {
    return;
  }
  if (!rope.is_object() || rope.value("rope_type", Json("default")) != "default") {
    refuse_field("rope_parameters", rope, "only the rope_type \"default\" is implemented");
  }
  for (const auto& item : rope.items()) {
    if (item.key() == "partial_rotary_factor") {
      file["rotary_pct"] = item.value();
    } else if (item.key() != "rope_type") {
      file[item.key()] = item.value();
    }
  }
}

/// The share of a head's channels that turns; negative: not said.
double take_rotary_share(Json& file) {
  double share = -1;
  for (const char* key : {"rotary_pct", "partial_rotary_factor"}) {
    const auto found = file.find(key);
    if (found == file.end()) {
      continue;
    }
    if (!found->is_number() || found->get<double>() <= 0 || found->get<double>() > 1) {
      refuse_field(key, *found, "write a number above 0 and up to 1");
    }
    share = found->get<double>();
    file.erase(key);
  }
  return share;
}

DecoderOptions decoder_of(Json file) {
  const std::string architecture =
      file.is_object() && file.contains("model_type") && file["model_type"].is_string()
          ? file["model_type"].get<std::string>()
          : "";
  if (architecture != "llama" && architecture != "gptj" && architecture != "gpt_neo" &&
      architecture != "gpt_neox") {
    throw ConfigError(
        str("\"model_type\": found ",
            quoted_briefly(architecture),
            "; expected gpt2, llama, gptj, gpt_neo, gpt_neox, bert, roberta or t5"));
  }
  const bool neox = architecture == "gpt_neox";
  double share = -1;
  if (neox || architecture == "llama") {
    spread_rope(file);
  }
  if (neox) {
    share = take_rotary_share(file);
  } else if (architecture == "gpt_neo") {
    take_layers(file);
  }
  const PublishedForm form{
      str("a model of the type ", architecture),
      "hidden_size",
      fields_of(architecture),
      dropouts_of(architecture),
      only_values(architecture)};
  Json said = options_of_fields(file, form);
  DecoderOptions defaults = decoder_defaults(architecture);
  if (neox) {
    defaults.rotary_dim = 0; // a share of a width that the file says
  }
  DecoderOptions options = decoder_options(said.dump(), defaults);
  if (neox) {
    constexpr double kUsual = 0.25;
    options.rotary_dim = static_cast<std::int64_t>(
        std::floor(static_cast<double>(head_width(options)) * (share < 0 ? kUsual : share)));
  }
  return decoder_options("{}", options);
}

void write_llama(Json& file, const DecoderOptions& o) {
  file["hidden_size"] = o.hidden_size;
  file["intermediate_size"] = inner_width(o);
  file["num_hidden_layers"] = o.num_hidden_layers;
  file["num_attention_heads"] = o.num_attention_heads;
  file["num_key_value_heads"] = key_value_heads(o);
  file["head_dim"] = head_width(o);
  file["max_position_embeddings"] = o.max_position_embeddings;
  file["hidden_act"] = o.hidden_act;
  file["rms_norm_eps"] = o.norm_epsilon;
  file["attention_bias"] = o.attention_bias;
  file["mlp_bias"] = o.mlp_bias;
  file["rope_theta"] = o.rope_theta;
}

void write_gptj(Json& file, const DecoderOptions& o) {
  file["n_embd"] = o.hidden_size;
  file["n_inner"] = o.intermediate_size == 0 ? Json(nullptr) : Json(o.intermediate_size);
  file["n_layer"] = o.num_hidden_layers;
  file["n_head"] = o.num_attention_heads;
  file["n_positions"] = o.max_position_embeddings;
  file["activation_function"] = o.hidden_act;
  file["layer_norm_epsilon"] = o.norm_epsilon;
  file["rotary_dim"] = o.rotary_dim == 0 ? head_width(o) : o.rotary_dim;
}

void write_gpt_neo(Json& file, const DecoderOptions& o) {
  file["hidden_size"] = o.hidden_size;
  file["intermediate_size"] = o.intermediate_size == 0 ? Json(nullptr) : Json(o.intermediate_size);
  file["num_layers"] = o.num_hidden_layers;
  file["num_heads"] = o.num_attention_heads;
  file["max_position_embeddings"] = o.max_position_embeddings;
  file["activation_function"] = o.hidden_act;
  file["layer_norm_epsilon"] = o.norm_epsilon;
  file["window_size"] = o.window_size;
  Json layers = Json::array();
  for (std::int64_t i = 0; i < o.num_hidden_layers; ++i) {
    layers.push_back(i % 2 == 0 ? "global" : "local");
  }
  // transformers makes attention_layers of attention_types.
  Json types = Json::array();
  types.push_back(Json::array({Json::array({"global", "local"}), o.num_hidden_layers / 2}));
  if (o.num_hidden_layers % 2 == 1) {
    types.push_back(Json::array({Json::array({"global"}), 1}));
  }
  file["attention_types"] = types;
  file["attention_layers"] = layers;
}

void write_gpt_neox(Json& file, const DecoderOptions& o) {
  file["hidden_size"] = o.hidden_size;
  file["intermediate_size"] = inner_width(o);
  file["num_hidden_layers"] = o.num_hidden_layers;
  file["num_attention_heads"] = o.num_attention_heads;
  file["max_position_embeddings"] = o.max_position_embeddings;
  file["hidden_act"] = o.hidden_act;
  file["layer_norm_eps"] = o.norm_epsilon;
  file["attention_bias"] = o.attention_bias;
  const auto head = static_cast<double>(head_width(o));
  const auto turned = static_cast<double>(o.rotary_dim == 0 ? head_width(o) : o.rotary_dim);
  double share = turned / head;
  if (std::floor(share * head) < turned) { // readers round down
    share = std::nextafter(share, 2.0);
  }
  file["rotary_pct"] = share;
  file["rotary_emb_base"] = o.rope_theta;
  file["use_parallel_residual"] = o.use_parallel_residual;
}

} // namespace

DecoderOptions decoder_from_published(const std::string& text, const std::string& origin) {
  return read_published(text, origin, decoder_of);
}

Options options_from_published(const std::string& text, const std::string& origin) {
  Json file = read_published(text, origin, [](Json whole) { return whole; });
  const Json type = file.is_object() && file.contains("model_type") ? file["model_type"] : Json();
  if (type.is_null() || type == "gpt2") {
    return gpt_from_published(text, origin);
  }
  if (type == "bert" || type == "roberta") {
    return bert_from_published(text, origin);
  }
  if (type == "t5") {
    return t5_from_published(text, origin);
  }
  if (type == "ncf") {
    file.erase("model_type");
    try {
      return ncf_options(file.dump());
    } catch (const ConfigError& error) {
      throw ConfigError(str(origin, ": ", error.what()));
    }
  }
  return decoder_from_published(text, origin);
}

std::string to_published(
    const DecoderOptions& options,
    std::optional<std::int32_t> end_of_document) {
  const std::map<std::string, std::string> classes{
      {"llama", "LlamaForCausalLM"},
      {"gptj", "GPTJForCausalLM"},
      {"gpt_neo", "GPTNeoForCausalLM"},
      {"gpt_neox", "GPTNeoXForCausalLM"}};
  Json file;
  file["architectures"] = Json::array({classes.at(options.architecture)});
  file["model_type"] = options.architecture;
  file["vocab_size"] = options.vocab_size;
  if (options.architecture == "llama") {
    write_llama(file, options);
  } else if (options.architecture == "gptj") {
    write_gptj(file, options);
  } else if (options.architecture == "gpt_neo") {
    write_gpt_neo(file, options);
  } else {
    write_gpt_neox(file, options);
  }
  for (const std::string& key : dropouts_of(options.architecture)) {
    file[key] = options.dropout;
  }
  file["initializer_range"] = options.initializer_range;
  file["tie_word_embeddings"] = options.tie_word_embeddings;
  const Json end = end_of_document ? Json(*end_of_document) : Json(nullptr);
  file["bos_token_id"] = end;
  file["eos_token_id"] = end;
  return file.dump(2) + "\n";
}

} // namespace tessera::models
