#pragma once

#include <cstdint>
#include <string>

namespace tessera::models {

// The sizes of each family, under the names that Hugging Face's config.json
// files use.

/// The most layers that options may ask for: far above every model there is. Beyond it the
/// description of the layers alone would fill the memory.
inline constexpr std::int64_t kMostLayers = 65536;

/// Decoder-only transformer. Source: Radford et al. 2019 (GPT-2), Brown et al.
/// 2020 (GPT-3; its alternating sparse attention is dense here).
struct GptOptions {
  std::int64_t vocab_size = 50257;
  std::int64_t n_positions = 1024; // longest sequence
  std::int64_t n_embd = 768; // width
  std::int64_t n_layer = 12;
  std::int64_t n_head = 12;
  std::int64_t n_inner = 0; // 0: 4 * n_embd
  double dropout = 0.1; // after embeddings, in attention, after both sub-layers
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  std::string activation_function = "gelu_new"; // one of activation_names()
  /// The output layer's weight is the token embedding; false: it has its own.
  bool tie_word_embeddings = true;
  /// Attention scores are divided by the square root of a head's width.
  bool scale_attn_weights = true;
  /// Scores of layer i, counted from 1, are divided by i as well.
  bool scale_attn_by_inverse_layer_idx = false;
};

/// Decoder-only transformers after GPT-2, under the names of Llama's config.json.
/// Source: models/decoder.h.
struct DecoderOptions {
  std::string architecture = "llama"; // or gptj, gpt_neo, gpt_neox: the model_type
  std::int64_t vocab_size = 32000;
  std::int64_t hidden_size = 4096;
  /// 0: 4 * hidden_size.
  std::int64_t intermediate_size = 11008;
  std::int64_t num_hidden_layers = 32;
  std::int64_t num_attention_heads = 32;
  std::int64_t num_key_value_heads = 0; // llama; 0: num_attention_heads
  std::int64_t head_dim = 0; // llama; 0: hidden_size / num_attention_heads
  std::int64_t max_position_embeddings = 2048; // longest sequence
  std::string hidden_act = "silu"; // one of activation_names()
  double norm_epsilon = 1e-6;
  double initializer_range = 0.02;
  /// Of attention weights; but for llama also after embeddings and both
  /// sub-layers.
  double dropout = 0;
  bool tie_word_embeddings = false;
  bool attention_bias = false; // llama, gpt_neox; the others' biases are fixed
  bool mlp_bias = false; // llama
  double rope_theta = 10000; // base of the rotary positions; not gpt_neo
  std::int64_t rotary_dim = 0; // gptj, gpt_neox: channels of a head that turn; 0: all
  std::int64_t window_size = 256; // gpt_neo: keys that every second layer sees
  bool use_parallel_residual = true; // gpt_neox
  /// Attention in blocks, which keeps no matrix of scores; the same numbers but
  /// for rounding.
  bool flash_attention = false;
};

/// Those of transformers for an architecture: the sizes of the first published
/// model.
DecoderOptions decoder_defaults(const std::string& architecture);

/// What 0 stands for.
std::int64_t inner_width(const DecoderOptions& options);
std::int64_t head_width(const DecoderOptions& options);
std::int64_t key_value_heads(const DecoderOptions& options);

/// Encoder-decoder with relative position bias. Source: Raffel et al. 2020.
struct T5Options {
  std::int64_t vocab_size = 32128;
  std::int64_t d_model = 512;
  std::int64_t d_kv = 64; // of one head; heads * d_kv need not be d_model
  std::int64_t d_ff = 2048;
  std::int64_t num_layers = 6; // of the encoder
  std::int64_t num_decoder_layers = 0; // 0: num_layers
  std::int64_t num_heads = 8;
  std::int64_t relative_attention_num_buckets = 32;
  std::int64_t relative_attention_max_distance = 128;
  double dropout_rate = 0.1;
  double layer_norm_epsilon = 1e-6;
  double initializer_factor = 1.0;
  std::int64_t decoder_start_token_id = 0; // also what pads the decoder input
  /// "relu"; "gated-gelu" (version 1.1) and "gated-silu" have two matrices, of which the
  /// activated one multiplies the other.
  std::string feed_forward_proj = "relu";
  /// The output layer's weight is the embedding; false: it has its own, as in version 1.1.
  bool tie_word_embeddings = true;
  /// A tied output layer's input is divided by sqrt(d_model).
  bool scale_decoder_outputs = true;
};

/// Whether a T5's feed-forward layers have a gate, and their activation function.
bool is_gated(const T5Options& options);
std::string activation_of(const T5Options& options);

/// Encoder with masked-language-model and next-sentence heads; RoBERTa is the
/// same without token types and the second head.
/// Source: Devlin et al. 2019; Liu et al. 2019.
struct BertOptions {
  std::int64_t vocab_size = 30522;
  std::int64_t hidden_size = 768;
  std::int64_t num_hidden_layers = 12;
  std::int64_t num_attention_heads = 12;
  std::int64_t intermediate_size = 3072; // 0: 4 * hidden_size
  std::int64_t max_position_embeddings = 512;
  std::int64_t type_vocab_size = 2;
  std::int64_t pad_token_id = 0;
  double hidden_dropout_prob = 0.1;
  double attention_probs_dropout_prob = 0.1;
  double layer_norm_eps = 1e-12;
  double initializer_range = 0.02;
  /// RoBERTa: positions start after pad_token_id, parameters are named
  /// "roberta." and "lm_head.", no next-sentence head.
  bool roberta = false;
  /// The pooler and the head for pairs of sentences (BertForPreTraining); false: the masked head
  /// alone (BertForMaskedLM), as a RoBERTa has it whatever this says.
  bool next_sentence = true;
};

/// Neural matrix factorisation. Source: He et al. 2017, section 3.4.
struct NcfOptions {
  std::int64_t users = 138493; // MovieLens 20M
  std::int64_t items = 26744;
  std::int64_t factors = 64; // of the generalised matrix factorisation
  /// Widths of the tower's layers; the first is that of both embeddings
  /// together. He et al. halve it each time.
  std::int64_t first_layer = 256;
  std::int64_t layers = 3; // after the first: 256 -> 128 -> 64 -> 32
  double dropout = 0.0;
};

/// Reads options from the text of a JSON object over given defaults. Throws:
/// ConfigError that names the key, what was found and what is allowed.
/// A key that is not an option is an error with the nearest one.
/// published_config.h reads a whole config.json.
GptOptions gpt_options(const std::string& json, GptOptions defaults = {});
DecoderOptions decoder_options(const std::string& json, DecoderOptions defaults = {});
T5Options t5_options(const std::string& json, T5Options defaults = {});
BertOptions bert_options(const std::string& json, BertOptions defaults = {});
NcfOptions ncf_options(const std::string& json, NcfOptions defaults = {});

std::string to_json(const GptOptions& options);
std::string to_json(const DecoderOptions& options);
std::string to_json(const T5Options& options);
std::string to_json(const BertOptions& options);
std::string to_json(const NcfOptions& options);

} // namespace tessera::models
