#include "models/published_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"

namespace tessera::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;

GptOptions read(const std::string& text) {
  return gpt_from_published(text, "config.json");
}

std::string refusal(const std::string& text) {
  try {
    read(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(PublishedConfig, ReadsWhatChangesTheMathematics) {
  const GptOptions options = read(R"({
      "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_ctx": 1024,
      "n_embd": 1024, "n_head": 16, "n_layer": 24, "n_inner": null, "vocab_size": 50257,
      "activation_function": "gelu_fast", "tie_word_embeddings": false,
      "scale_attn_weights": false, "scale_attn_by_inverse_layer_idx": true,
      "reorder_and_upcast_attn": true, "layer_norm_epsilon": 1e-6, "add_cross_attention": false,
      "resid_pdrop": 0.3, "embd_pdrop": 0.3, "attn_pdrop": 0.3, "bos_token_id": 50256,
      "task_specific_params": {"text-generation": {"do_sample": true}}})");
  EXPECT_EQ(options.n_embd, 1024);
  EXPECT_EQ(options.n_inner, 0);
  EXPECT_EQ(options.activation_function, "gelu_fast");
  EXPECT_FALSE(options.tie_word_embeddings);
  EXPECT_FALSE(options.scale_attn_weights);
  EXPECT_TRUE(options.scale_attn_by_inverse_layer_idx);
  EXPECT_EQ(options.layer_norm_epsilon, 1e-6);
  EXPECT_EQ(options.dropout, 0.3);
}

TEST(PublishedConfig, WhatIsLeftOutIsAsInTransformers) {
  const GptOptions options = read("{}");
  EXPECT_EQ(options.vocab_size, 50257);
  EXPECT_EQ(options.n_positions, 1024);
  EXPECT_EQ(options.activation_function, "gelu_new");
  EXPECT_TRUE(options.tie_word_embeddings);
  EXPECT_TRUE(options.scale_attn_weights);
  EXPECT_FALSE(options.scale_attn_by_inverse_layer_idx);
}

TEST(PublishedConfig, OtherNamesOfASizeAreUnderstood) {
  const GptOptions options =
      read(R"({"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
               "max_position_embeddings": 32, "n_embd": 64})");
  EXPECT_EQ(options.n_embd, 64);
  EXPECT_EQ(options.n_layer, 2);
  EXPECT_THAT(
      refusal(R"({"hidden_size": 64, "n_embd": 32})"),
      AllOf(HasSubstr("\"n_embd\": found 32"), HasSubstr("\"hidden_size\"")));
}

TEST(PublishedConfig, RefusesByNameAndValueWhatIsNotImplemented) {
  EXPECT_THAT(
      refusal(R"({"add_cross_attention": true})"),
      AllOf(
          HasSubstr("config.json: \"add_cross_attention\": found true"),
          HasSubstr("only false is implemented")));
  EXPECT_THAT(refusal(R"({"model_type": "llama"})"), HasSubstr("\"model_type\": found \"llama\""));
  EXPECT_THAT(refusal(R"({"pruned_heads": {"0": [1]}})"), HasSubstr("found {\"0\":[1]}"));
  EXPECT_THAT(
      refusal(R"({"quantization_config": {"bits": 4}})"), HasSubstr("\"quantization_config\""));
  EXPECT_THAT(
      refusal(R"({"attention_bias_kind": "alibi"})"),
      AllOf(HasSubstr("\"attention_bias_kind\": found \"alibi\""), HasSubstr("not known")));
  EXPECT_THAT(
      refusal(R"({"activation_function": "laplace"})"),
      AllOf(HasSubstr("\"laplace\""), HasSubstr("quick_gelu")));
  EXPECT_THAT(refusal(R"({"n_embd": 10, "n_head": 4})"), HasSubstr("not a multiple"));
}

TEST(PublishedConfig, HostileTextIsAnError) {
  EXPECT_THAT(refusal(std::string(60000, '[')), HasSubstr("nested deeper than 256 levels"));
  EXPECT_THAT(
      refusal(R"({"n_embd": 64, "n_embd": 32})"),
      AllOf(HasSubstr("line 1, column 2"), HasSubstr("line 1, column 16")));
  EXPECT_THAT(refusal("[]"), HasSubstr("expected an object"));
  EXPECT_THAT(refusal("{"), HasSubstr("not valid JSON"));
}

TEST(PublishedConfig, WhatIsWrittenIsReadAsItWas) {
  GptOptions options;
  options.n_embd = 48;
  options.n_head = 4;
  options.n_inner = 100;
  options.dropout = 0.25;
  options.activation_function = "silu";
  options.tie_word_embeddings = false;
  EXPECT_EQ(to_json(read(to_published(options))), to_json(options));
}

// What transformers needs to find the class, and what it would misread.
TEST(PublishedConfig, IsWrittenForTransformers) {
  const auto file = parse_json(to_published(GptOptions(), 2), "");
  EXPECT_EQ(file.at("model_type"), "gpt2");
  EXPECT_EQ(file.at("architectures"), nlohmann::ordered_json::array({"GPT2LMHeadModel"}));
  EXPECT_TRUE(file.at("n_inner").is_null());
  EXPECT_EQ(file.at("eos_token_id"), 2);
  EXPECT_EQ(file.at("attn_pdrop"), 0.1);
  EXPECT_FALSE(file.contains("dropout"));
  EXPECT_TRUE(parse_json(to_published(GptOptions()), "").at("bos_token_id").is_null());
}

} // namespace
} // namespace tessera::models
