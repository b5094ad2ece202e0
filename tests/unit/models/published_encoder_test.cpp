#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"

#include "models/published_config.h"

namespace tessera::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string refusal_of(const std::string& text) {
  try {
    options_from_published(text, "config.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no ConfigError";
}

// As transformers 4.x writes them, but for sizes.
const char* const kBert = R"({
  "architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1,
  "gradient_checkpointing": false, "hidden_act": "gelu", "hidden_dropout_prob": 0.2,
  "hidden_size": 64, "initializer_range": 0.02, "intermediate_size": 256, "layer_norm_eps": 1e-12,
  "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 4,
  "num_hidden_layers": 2, "pad_token_id": 0, "position_embedding_type": "absolute",
  "transformers_version": "4.6.0.dev0", "type_vocab_size": 2, "use_cache": true,
  "vocab_size": 30522})";
const char* const kT5 = R"({
  "architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64, "d_model": 512,
  "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1, "initializer_factor": 1.0,
  "is_encoder_decoder": true, "layer_norm_epsilon": 1e-06, "model_type": "t5", "n_positions": 512,
  "num_heads": 8, "num_layers": 6, "output_past": true, "pad_token_id": 0,
  "relative_attention_num_buckets": 32, "vocab_size": 32128})";

TEST(PublishedEncoder, FilesOfTransformersAreRead) {
  const auto bert = std::get<BertOptions>(options_from_published(kBert, "config.json"));
  EXPECT_EQ(bert.hidden_size, 64);
  EXPECT_EQ(bert.hidden_dropout_prob, 0.2);
  EXPECT_EQ(bert.vocab_size, 30522);
  EXPECT_FALSE(bert.roberta);
  const auto t5 = std::get<T5Options>(options_from_published(kT5, "config.json"));
  EXPECT_EQ(t5.d_ff, 2048);
  EXPECT_EQ(t5.num_decoder_layers, 0);
  EXPECT_EQ(t5.dropout_rate, 0.1);
  EXPECT_EQ(preset_of_options("x", bert).family, "bert");
  EXPECT_EQ(preset_of_options("x", t5).family, "t5");
}

TEST(PublishedEncoder, WhatIsWrittenIsReadBack) {
  BertOptions bert;
  bert.vocab_size = 401;
  bert.hidden_size = 96;
  bert.num_attention_heads = 6;
  bert.intermediate_size = 0;
  bert.pad_token_id = 3;
  bert.layer_norm_eps = 1e-5;
  for (const bool roberta : {false, true}) {
    bert.roberta = roberta;
    const std::string text = to_published(Options(bert), 2);
    const OrderedJson file = OrderedJson::parse(text);
    EXPECT_EQ(file["model_type"], roberta ? "roberta" : "bert");
    EXPECT_EQ(file["architectures"][0], roberta ? "RobertaForMaskedLM" : "BertForPreTraining");
    EXPECT_EQ(file["intermediate_size"], 384);
    EXPECT_EQ(file["eos_token_id"], 2);
    BertOptions again = std::get<BertOptions>(options_from_published(text, "config.json"));
    EXPECT_EQ(again.intermediate_size, 384);
    again.intermediate_size = 0;
    EXPECT_EQ(to_json(again), to_json(bert));
  }
  T5Options t5;
  t5.num_decoder_layers = 3;
  t5.d_kv = 48;
  t5.decoder_start_token_id = 3;
  const auto again =
      std::get<T5Options>(options_from_published(to_published(Options(t5)), "config.json"));
  EXPECT_EQ(to_json(again), to_json(t5));
}

TEST(PublishedEncoder, WhatIsNotImplementedIsNamed) {
  std::string text = kT5;
  text.replace(text.find("\"n_positions\""), 1, "\"feed_forward_proj\": \"gated-mish\", \"");
  EXPECT_THAT(refusal_of(text), AllOf(HasSubstr("feed_forward_proj"), HasSubstr("gated-mish")));
  text = kT5;
  text.replace(text.find("\"n_positions\""), 1, "\"is_gated_act\": true, \"");
  EXPECT_THAT(refusal_of(text), AllOf(HasSubstr("is_gated_act"), HasSubstr("only false")));
  text = kBert;
  text.replace(text.find("absolute"), 8, "relative_key");
  EXPECT_THAT(
      refusal_of(text), AllOf(HasSubstr("position_embedding_type"), HasSubstr("relative_key")));
  text = kBert;
  text.replace(text.find("\"gelu\""), 6, "\"gelu_new\"");
  EXPECT_THAT(refusal_of(text), AllOf(HasSubstr("hidden_act"), HasSubstr("gelu_new")));
  EXPECT_THAT(refusal_of(R"({"model_type": "bart"})"), HasSubstr("bert, roberta or t5"));
}

TEST(PublishedEncoder, HeadsAreThoseOfTheFile) {
  std::string text = kBert; // of a BertForMaskedLM
  EXPECT_FALSE(std::get<BertOptions>(options_from_published(text, "config.json")).next_sentence);
  text.replace(text.find("BertForMaskedLM"), 15, "BertForPreTraining");
  EXPECT_TRUE(std::get<BertOptions>(options_from_published(text, "config.json")).next_sentence);
  text = kT5; // as the files of T5 1.1
  text.replace(
      text.find("\"n_positions\""),
      1,
      "\"feed_forward_proj\": \"gated-gelu\", \"tie_word_embeddings\": false, \"");
  const auto t5 = std::get<T5Options>(options_from_published(text, "config.json"));
  EXPECT_FALSE(t5.tie_word_embeddings);
  EXPECT_TRUE(is_gated(t5));
  EXPECT_EQ(activation_of(t5), "gelu_new");
  T5Options tied = t5;
  tied.tie_word_embeddings = true;
  EXPECT_EQ(count_parameters(t5) - count_parameters(tied), 32128 * 512);
  EXPECT_EQ(count_parameters(tied) - count_parameters(T5Options{}), 12 * 512 * 2048);
}

TEST(LanguageModelSizes, OfEncoders) {
  BertOptions roberta;
  roberta.roberta = true;
  roberta.pad_token_id = 3;
  const auto sizes = language_model_sizes(roberta).value();
  EXPECT_EQ(sizes.positions, 508);
  EXPECT_EQ(sizes.reserved_positions, 4);
  EXPECT_FALSE(language_model_sizes(NcfOptions{}).has_value());
  EXPECT_TRUE(continues_a_text(GptOptions{}) && continues_a_text(DecoderOptions{}));
  EXPECT_FALSE(continues_a_text(roberta) || continues_a_text(T5Options{}));
}

TEST(FlopsPerToken, CountTheDecoderAmongTheEncodersTokens) {
  BertOptions bert;
  bert.vocab_size = 10;
  bert.hidden_size = 4;
  bert.intermediate_size = 0;
  bert.num_hidden_layers = 2;
  const double weights = 2 * 12 * 16 + 16 + 10 * 4;
  EXPECT_DOUBLE_EQ(flops_per_token(bert, 7), 6 * weights + 12 * 2 * 4 * 7);
  T5Options t5;
  t5.vocab_size = 10;
  t5.d_model = 4;
  t5.d_kv = 3;
  t5.num_heads = 2;
  t5.d_ff = 5;
  t5.num_layers = 2;
  t5.num_decoder_layers = 1;
  const double attention = 4 * 4 * 6;
  const double feed_forward = 2 * 4 * 5;
  const double encoder = 8 * (6 * 2 * (attention + feed_forward) + 12 * 2 * 6 * 8);
  // Two attentions a layer; keys and values of the second are of the encoder's 8 tokens.
  const double decoder = 6 * (3 * (1.5 * attention + feed_forward) + 8 * attention / 2) +
                         12 * 6 * (3 * 3 + 3 * 8) + 6 * 3 * 40;
  EXPECT_DOUBLE_EQ(flops_per_token(t5, 8, 3), (encoder + decoder) / 8);
}

} // namespace
} // namespace tessera::models
