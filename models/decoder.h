#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include "tessera/nn/layers/transformer_options.h"

#include "models/layers.h"
#include "models/options.h"

// Decoder-only transformers after GPT-2 as one model in four forms: Llama, GPT-J,
// GPT-Neo and GPT-NeoX. Parameters have the names and shapes of their Hugging
// Face checkpoints ("model.layers.0.self_attn.q_proj.weight" is [H D, I]).
// Source: Touvron et al. 2023 (Llama), Wang and Komatsuzaki 2021 (GPT-J), Black
// et al. 2021 (GPT-Neo), Black et al. 2022 (GPT-NeoX).
namespace tessera::models {

/// What an architecture's checkpoints call the parts; empty: it has none.
struct DecoderNames {
  std::string root; // of everything but the output layer
  std::string table;
  std::string positions;
  std::string layers;
  std::string first_norm;
  std::string second_norm;
  std::string attention; // two names where one module holds another
  std::string query, key, value; // or, in one, by head:
  std::string query_key_value;
  std::string attention_out;
  std::string gate, inner, outer; // below "mlp"
  std::string last_norm;
  std::string head;
};
const DecoderNames& decoder_names(const DecoderOptions& options);

/// Layer `layer`, counted from 0, as options of a distributed layer; the modules
/// here compute what they say.
/// Throws: ShapeError when a distributed layer does not have hidden_act.
nn::TransformerOptions decoder_layer_options(const DecoderOptions& options, std::int64_t layer);

/// Root mean square or mean and variance, as the architecture has it.
/// Shapes: x_BSI -> y_BSI.
class DecoderNormImpl : public torch::nn::Module {
 public:
  explicit DecoderNormImpl(const DecoderOptions& options);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;
  at::Tensor bias; // undefined by root mean square

 private:
  double epsilon_;
};
TESSERA_MODULE(DecoderNorm);

/// Causal self-attention. Shapes: x_BSI, first_keys_B1S1 (nn/layers/first_keys.h; undefined: a
/// token sees all before it) -> y_BSI.
class DecoderAttentionImpl : public torch::nn::Module {
 public:
  DecoderAttentionImpl(const DecoderOptions& options, std::int64_t layer);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& first_keys = {});

 private:
  nn::TransformerOptions layer_;
  double dropout_; // of what comes out
  Linear query_{nullptr};
  Linear key_{nullptr};
  Linear value_{nullptr};
  Linear query_key_value_{nullptr}; // by head, in the place of the three
  Linear out_{nullptr};
};
TESSERA_MODULE(DecoderAttention);

/// Shapes: x_BSI -> y_BSI.
class DecoderMlpImpl : public torch::nn::Module {
 public:
  DecoderMlpImpl(const DecoderOptions& options, std::int64_t layer);
  at::Tensor forward(const at::Tensor& x);

 private:
  std::string activation_;
  double dropout_;
  Linear gate_{nullptr}; // or none
  Linear inner_{nullptr};
  Linear outer_{nullptr};
};
TESSERA_MODULE(DecoderMlp);

/// One layer. Shapes: x_BSI, first_keys_B1S1 -> y_BSI, first_keys_B1S1, so that layers form a
/// sequence.
class DecoderBlockImpl : public torch::nn::Module {
 public:
  using State = std::tuple<at::Tensor, at::Tensor>;

  DecoderBlockImpl(const DecoderOptions& options, std::int64_t layer);
  State forward(at::Tensor x, const at::Tensor& first_keys = {});

  DecoderOptions options;
  std::int64_t layer;

 private:
  bool in_parallel_;
  DecoderNorm first_norm_{nullptr};
  DecoderAttention attention_{nullptr};
  DecoderNorm second_norm_{nullptr}; // or none: the first one's result again
  DecoderMlp mlp_{nullptr};
};
TESSERA_MODULE(DecoderBlock);

/// Embeddings, blocks, last norm. Shapes: ids_BS, document_begins_BS, positions_BS -> hidden_BSI.
class DecoderStackImpl : public torch::nn::Module {
 public:
  explicit DecoderStackImpl(const DecoderOptions& options);
  at::Tensor forward(
      const at::Tensor& ids,
      const at::Tensor& document_begins = {},
      const at::Tensor& positions = {});

  Embedding table{nullptr};

 private:
  std::int64_t positions_;
  double dropout_;
  Embedding position_table_{nullptr}; // or none
  nn::Sequential layers_;
  DecoderNorm last_norm_{nullptr};
};
TESSERA_MODULE(DecoderStack);

/// A language model. Shapes: ids_BS (int64) -> logits_BSV; with targets_BS their
/// mean cross entropy. With document_begins_BS (int64), the place in its sequence where each
/// token's document begins, a token sees those of its own document alone. positions_BS (int64) are
/// rows of the position embedding in the place of 0, 1, ...; without one, as attention then knows
/// distances alone, positions that begin again in each document change nothing, and are left out.
/// Initialisation: normal(0, initializer_range), biases 0, norms 1.
/// Threads: as torch::nn::Module. Not collective.
/// Throws: ShapeError when ids are not [B, S] or S exceeds
/// max_position_embeddings.
class DecoderImpl : public torch::nn::Module {
 public:
  explicit DecoderImpl(const DecoderOptions& options);
  at::Tensor forward(
      const at::Tensor& ids,
      const at::Tensor& targets = {},
      const at::Tensor& document_begins = {},
      const at::Tensor& positions = {});

  const DecoderOptions& options() const {
    return options_;
  }

 private:
  DecoderOptions options_;
  DecoderStack stack_{nullptr};
  TiedLinear tied_head_{nullptr}; // one of the two is there
  Linear own_head_{nullptr};
};
TESSERA_MODULE(Decoder);

} // namespace tessera::models
