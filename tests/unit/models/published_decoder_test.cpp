#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

#include "models/published_config.h"

namespace tessera::models {
namespace {

using testing::HasSubstr;

DecoderOptions read(const std::string& text) {
  return decoder_from_published(text, "config.json");
}

std::string refusal(const std::string& text) {
  try {
    options_from_published(text, "config.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(PublishedDecoder, ReadsALlama) {
  const DecoderOptions o = read(R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": false,
      "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001,
      "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
      "intermediate_size": 14336, "max_position_embeddings": 8192, "mlp_bias": false,
      "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
      "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 500000.0,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true,
      "vocab_size": 128256})");
  EXPECT_EQ(o.architecture, "llama");
  EXPECT_EQ(o.num_key_value_heads, 8);
  EXPECT_EQ(o.intermediate_size, 14336);
  EXPECT_EQ(o.norm_epsilon, 1e-5);
  EXPECT_EQ(o.rope_theta, 500000);
  EXPECT_EQ(o.vocab_size, 128256);
  EXPECT_EQ(
      read(R"({"model_type": "llama",
               "rope_parameters": {"rope_type": "default", "rope_theta": 7000}})")
          .rope_theta,
      7000);
}

TEST(PublishedDecoder, ReadsAGptJ) {
  const DecoderOptions o = read(R"({
      "activation_function": "gelu_new", "architectures": ["GPTJForCausalLM"], "attn_pdrop": 0.1,
      "embd_pdrop": 0.1, "resid_pdrop": 0.1, "initializer_range": 0.02,
      "layer_norm_epsilon": 1e-05, "model_type": "gptj", "n_embd": 4096, "n_head": 16,
      "n_inner": null, "n_layer": 28, "n_positions": 2048, "rotary_dim": 64,
      "tie_word_embeddings": false, "vocab_size": 50400, "summary_type": "cls_index"})");
  EXPECT_EQ(o.rotary_dim, 64);
  EXPECT_EQ(o.num_hidden_layers, 28);
  EXPECT_EQ(inner_width(o), 16384);
  EXPECT_EQ(o.dropout, 0.1);
}

TEST(PublishedDecoder, ReadsAGptNeo) {
  const DecoderOptions o = read(R"({
      "model_type": "gpt_neo", "hidden_size": 768, "num_heads": 12, "num_layers": 4,
      "attention_types": [[["global", "local"], 2]],
      "attention_layers": ["global", "local", "global", "local"],
      "window_size": 128, "intermediate_size": null, "max_position_embeddings": 2048,
      "activation_function": "gelu_new", "vocab_size": 50257})");
  EXPECT_EQ(o.num_hidden_layers, 4);
  EXPECT_EQ(o.window_size, 128);
  EXPECT_TRUE(o.tie_word_embeddings);
}

TEST(PublishedDecoder, GlobalLayersAloneAreAWindowOverAllPositions) {
  const DecoderOptions o = read(R"({
      "model_type": "gpt_neo", "num_layers": 3, "attention_types": [[["global"], 3]],
      "window_size": 16, "max_position_embeddings": 64})");
  EXPECT_EQ(o.window_size, 64);
  EXPECT_EQ(
      read(R"({"model_type": "gpt_neo", "num_layers": 1, "window_size": 16,
                     "attention_types": [[["global"], 1]]})")
          .window_size,
      16); // by turns as well
}

TEST(PublishedDecoder, ReadsAGptNeoX) {
  const std::string text = R"({
      "model_type": "gpt_neox", "hidden_size": 512, "num_attention_heads": 8,
      "num_hidden_layers": 6, "intermediate_size": 2048, "rotary_pct": 0.25,
      "rotary_emb_base": 10000, "use_parallel_residual": true, "layer_norm_eps": 1e-05,
      "hidden_act": "gelu", "vocab_size": 50304, "classifier_dropout": 0.1})";
  const DecoderOptions o = read(text);
  EXPECT_EQ(o.rotary_dim, 16);
  EXPECT_TRUE(o.attention_bias);
  EXPECT_TRUE(std::holds_alternative<DecoderOptions>(options_from_published(text, "file")));
  EXPECT_TRUE(std::holds_alternative<GptOptions>(options_from_published("{}", "file")));
}

TEST(PublishedDecoder, WhatIsWrittenIsRead) {
  for (const Preset& preset : presets()) {
    if (const auto* options = std::get_if<DecoderOptions>(&preset.options)) {
      const DecoderOptions again = read(to_published(*options, 2));
      DecoderOptions filled = *options; // zeros are written as what they stand for
      if (options->architecture == "llama") {
        filled.num_key_value_heads = key_value_heads(*options);
        filled.head_dim = head_width(*options);
      } else if (options->architecture == "gpt_neox") {
        filled.intermediate_size = inner_width(*options);
      }
      EXPECT_EQ(to_json(again), to_json(filled)) << preset.name;
    }
  }
}

TEST(PublishedDecoder, WhatIsNotImplementedIsAnErrorThatNamesIt) {
  EXPECT_THAT(refusal(R"({"model_type": "mamba"})"), HasSubstr("mamba"));
  EXPECT_THAT(
      refusal(R"({"model_type": "llama", "rope_scaling": {"factor": 8}})"),
      HasSubstr("rope_scaling"));
  EXPECT_THAT(
      refusal(R"({"model_type": "llama", "rope_parameters": {"rope_type": "yarn"}})"),
      HasSubstr("rope_parameters"));
  EXPECT_THAT(
      refusal(R"({"model_type": "gpt_neo", "num_layers": 2, "attention_types": [[["local"], 2]]})"),
      HasSubstr("attention_types"));
  EXPECT_THAT(
      refusal(R"({"model_type": "gpt_neo", "attention_types": "local"})"),
      HasSubstr("attention_types"));
  EXPECT_THAT(refusal(R"({"model_type": "gpt_neox", "rotary_pct": 2})"), HasSubstr("rotary_pct"));
  EXPECT_THAT(
      refusal(R"({"model_type": "llama", "n_embd": 8})"), HasSubstr("type llama is not known"));
}

} // namespace
} // namespace tessera::models
