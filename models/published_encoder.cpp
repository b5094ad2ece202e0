#include "models/published_config.h"
#include "models/published_fields.h"

namespace tessera::models {

namespace {

using Json = PublishedJson;

/// Fields of an option's own name.
std::map<std::string, std::string> as_they_are(std::initializer_list<const char*> names) {
  std::map<std::string, std::string> fields;
  for (const char* name : names) {
    fields.emplace(name, name);
  }
  return fields;
}

BertOptions bert_of(const Json& file) {
  const bool roberta = file.at("model_type") == "roberta";
  PublishedForm form{
      roberta ? "a RoBERTa" : "a BERT",
      "hidden_size",
      as_they_are(
          {"vocab_size",
           "hidden_size",
           "num_hidden_layers",
           "num_attention_heads",
           "intermediate_size",
           "max_position_embeddings",
           "type_vocab_size",
           "pad_token_id",
           "hidden_dropout_prob",
           "attention_probs_dropout_prob",
           "layer_norm_eps",
           "initializer_range"}),
      {},
      values_of_all(roberta ? "roberta" : "bert")};
  form.only_value.insert(
      {{"hidden_act", "gelu"},
       {"tie_word_embeddings", true},
       {"position_embedding_type", "absolute"},
       {"is_decoder", false},
       {"is_encoder_decoder", false}});
  BertOptions defaults; // those of transformers
  defaults.roberta = roberta;
  if (roberta) {
    defaults.vocab_size = 50265;
    defaults.pad_token_id = 1;
  }
  // A BERT without the head for pairs has no pooler either.
  const Json none;
  const Json classes = file.value("architectures", none);
  defaults.next_sentence = classes != Json::array({"BertForMaskedLM"});
  return bert_options(options_of_fields(file, form).dump(), defaults);
}

T5Options t5_of(const Json& file) {
  PublishedForm form{
      "a T5",
      "d_model",
      as_they_are(
          {"vocab_size",
           "d_model",
           "d_kv",
           "d_ff",
           "num_layers",
           "num_decoder_layers",
           "num_heads",
           "relative_attention_num_buckets",
           "relative_attention_max_distance",
           "dropout_rate",
           "layer_norm_epsilon",
           "initializer_factor",
           "decoder_start_token_id",
           "feed_forward_proj",
           "tie_word_embeddings",
           "scale_decoder_outputs"}),
      {},
      values_of_all("t5")};
  // transformers makes two fields of one, which is looked at first.
  const char* const said = "feed_forward_proj";
  const T5Options projection =
      t5_options(file.contains(said) ? Json{{said, file[said]}}.dump() : "{}");
  form.only_value.insert(
      {{"dense_act_fn", activation_of(projection)},
       {"is_gated_act", is_gated(projection)},
       {"is_encoder_decoder", true}});
  Json fields = file;
  fields.erase("n_positions"); // transformers ignores it as well: positions are relative
  return t5_options(options_of_fields(fields, form).dump());
}

void write_bert(Json& file, const BertOptions& o) {
  file["vocab_size"] = o.vocab_size;
  file["hidden_size"] = o.hidden_size;
  file["num_hidden_layers"] = o.num_hidden_layers;
  file["num_attention_heads"] = o.num_attention_heads;
  file["intermediate_size"] = o.intermediate_size == 0 ? 4 * o.hidden_size : o.intermediate_size;
  file["hidden_act"] = "gelu";
  file["hidden_dropout_prob"] = o.hidden_dropout_prob;
  file["attention_probs_dropout_prob"] = o.attention_probs_dropout_prob;
  file["max_position_embeddings"] = o.max_position_embeddings;
  file["type_vocab_size"] = o.type_vocab_size;
  file["initializer_range"] = o.initializer_range;
  file["layer_norm_eps"] = o.layer_norm_eps;
  file["pad_token_id"] = o.pad_token_id;
  file["position_embedding_type"] = "absolute";
}

} // namespace

BertOptions bert_from_published(const std::string& text, const std::string& origin) {
  return read_published(text, origin, bert_of);
}

T5Options t5_from_published(const std::string& text, const std::string& origin) {
  return read_published(text, origin, t5_of);
}

std::string to_published(const BertOptions& options, std::optional<std::int32_t> end_of_document) {
  Json file;
  file["architectures"] = Json::array(
      {options.roberta         ? "RobertaForMaskedLM"
       : options.next_sentence ? "BertForPreTraining"
                               : "BertForMaskedLM"});
  file["model_type"] = options.roberta ? "roberta" : "bert";
  write_bert(file, options);
  if (end_of_document) {
    file["eos_token_id"] = *end_of_document;
  }
  return file.dump(2) + "\n";
}

std::string to_published(const T5Options& options, std::optional<std::int32_t> end_of_document) {
  Json file;
  file["architectures"] = Json::array({"T5ForConditionalGeneration"});
  file["model_type"] = "t5";
  file["vocab_size"] = options.vocab_size;
  file["d_model"] = options.d_model;
  file["d_kv"] = options.d_kv;
  file["d_ff"] = options.d_ff;
  file["num_layers"] = options.num_layers;
  file["num_decoder_layers"] =
      options.num_decoder_layers == 0 ? options.num_layers : options.num_decoder_layers;
  file["num_heads"] = options.num_heads;
  file["relative_attention_num_buckets"] = options.relative_attention_num_buckets;
  file["relative_attention_max_distance"] = options.relative_attention_max_distance;
  file["dropout_rate"] = options.dropout_rate;
  file["layer_norm_epsilon"] = options.layer_norm_epsilon;
  file["initializer_factor"] = options.initializer_factor;
  file["feed_forward_proj"] = options.feed_forward_proj;
  file["is_encoder_decoder"] = true;
  file["tie_word_embeddings"] = options.tie_word_embeddings;
  if (options.tie_word_embeddings && !options.scale_decoder_outputs) {
    // Before version 5 transformers had no such T5.
    file["scale_decoder_outputs"] = false;
  }
  file["pad_token_id"] = options.decoder_start_token_id;
  file["decoder_start_token_id"] = options.decoder_start_token_id;
  if (end_of_document) {
    file["eos_token_id"] = *end_of_document;
  }
  return file.dump(2) + "\n";
}

std::string to_published(const Options& options, std::optional<std::int32_t> end_of_document) {
  return std::visit(
      [&](const auto& o) -> std::string {
        if constexpr (std::is_same_v<std::decay_t<decltype(o)>, NcfOptions>) {
          Json file = parse_json(to_json(o), "options");
          file["model_type"] = "ncf";
          return file.dump(2) + "\n";
        } else {
          return to_published(o, end_of_document);
        }
      },
      options);
}

} // namespace tessera::models
