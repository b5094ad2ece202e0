#pragma once

#include <tuple>

#include "models/layers.h"
#include "models/options.h"

// GPT-2 and GPT-3 under the names and shapes of Hugging Face's GPT-2
// checkpoints ("transformer.h.0.attn.c_attn.weight" is [I, 3 I]).
// Source: Radford et al. 2019, section 2.3; Brown et al. 2020, section 2.1.
namespace tessera::models {

/// Causal self-attention. Shapes: x_BSI, first_keys_B1S1 (nn/layers/first_keys.h; undefined: a
/// token sees all before it) -> y_BSI.
class GptAttentionImpl : public torch::nn::Module {
 public:
  /// `layer` counts from 0.
  explicit GptAttentionImpl(const GptOptions& options, std::int64_t layer = 0);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& first_keys = {});

 private:
  std::int64_t heads_;
  double scale_; // of attention scores
  double dropout_;
  Conv1D c_attn_;
  Conv1D c_proj_;
};
TESSERA_MODULE(GptAttention);

/// Two products with the activation function between. Shapes: x_BSI -> y_BSI.
class GptMlpImpl : public torch::nn::Module {
 public:
  explicit GptMlpImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  std::string activation_;
  double dropout_;
  Conv1D c_fc_;
  Conv1D c_proj_;
};
TESSERA_MODULE(GptMlp);

/// x + attention(norm(x)), then the same with the MLP. Shapes: x_BSI, first_keys_B1S1 -> y_BSI,
/// first_keys_B1S1, so that blocks form a sequence.
class GptBlockImpl : public torch::nn::Module {
 public:
  using State = std::tuple<at::Tensor, at::Tensor>;

  explicit GptBlockImpl(const GptOptions& options, std::int64_t layer = 0);
  State forward(at::Tensor x, const at::Tensor& first_keys = {});

  GptOptions options;
  std::int64_t layer; // from 0

 private:
  LayerNorm ln_1_;
  GptAttention attn_;
  LayerNorm ln_2_;
  GptMlp mlp_;
};
TESSERA_MODULE(GptBlock);

/// Embeddings, blocks, final norm. Shapes: ids_BS, document_begins_BS, positions_BS -> hidden_BSI.
class GptTransformerImpl : public torch::nn::Module {
 public:
  explicit GptTransformerImpl(const GptOptions& options);
  at::Tensor forward(
      const at::Tensor& ids,
      const at::Tensor& document_begins = {},
      const at::Tensor& positions = {});

  Embedding wte; // public: the output layer shares its weight

 private:
  std::int64_t positions_;
  double dropout_;
  Embedding wpe_;
  nn::Sequential h_;
  LayerNorm ln_f_;
};
TESSERA_MODULE(GptTransformer);

/// A language model whose output layer shares the token embedding, or has a
/// weight of its own ("lm_head.weight" either way).
/// Shapes: ids_BS (int64) -> logits_BSV in the parameters' dtype; with targets_BS
/// their mean cross entropy instead (layers.h), for which no rank of a mesh
/// gathers the logits.
/// With document_begins_BS (int64), the place in its sequence where each token's document begins, a
/// token sees those of its own document alone; with positions_BS (int64) these rows of the position
/// embedding are taken in the place of 0, 1, ...
///
/// Initialisation: normal(0, 0.02), the projections that end a residual branch
/// divided by sqrt(2 n_layer), biases 0.
///
/// Threads: as torch::nn::Module. Not collective.
///
/// Throws: ShapeError when ids are not [B, S] or S exceeds n_positions.
class GptImpl : public torch::nn::Module {
 public:
  explicit GptImpl(const GptOptions& options);
  at::Tensor forward(
      const at::Tensor& ids,
      const at::Tensor& targets = {},
      const at::Tensor& document_begins = {},
      const at::Tensor& positions = {});

  const GptOptions& options() const {
    return options_;
  }

 private:
  GptOptions options_;
  GptTransformer transformer_;
  TiedLinear tied_head_; // one of the two is there
  Linear own_head_;
};
TESSERA_MODULE(Gpt);

} // namespace tessera::models
