#pragma once

#include "tessera/nn/layers/cross_entropy.h"
#include "tessera/nn/layers/embedding.h"
#include "tessera/nn/layers/transformer_layer.h"

namespace tessera::nn {

/// A table inside a distributed module: rows in the inside placement, whole or
/// this rank's columns. Shapes: ids (on a mesh those of its row) -> rows_...I or
/// rows_...i.
class DistributedTableImpl : public DistributedModule {
 public:
  DistributedTableImpl(std::int64_t rows, std::int64_t width, const TransformerOptions& options);
  at::Tensor forward(const at::Tensor& ids);

  at::Tensor weight;

 private:
  summa::MeshBlocks rows_on_mesh() const;

  std::int64_t rows_;
};
TORCH_MODULE(DistributedTable);

/// What DistributedTransformerLMHead takes; what is undefined is left out.
struct LMHeadInputs {
  at::Tensor input_ids; // [b, S], int64
  at::Tensor attention_mask; // [b, S], 1 where a position is masked; or first keys (first_keys.h)
  at::Tensor token_type_ids; // [b, S]
  at::Tensor position_ids; // [b, S]; 0, 1, ... when undefined
  at::Tensor cross_states; // [b, T, I]
  at::Tensor cross_mask; // [b, T], 1 where a position is masked
  at::Tensor labels; // [b, S], not shifted; -100 does not count
};

/// A whole language model: embeddings, DistributedTransformer, with
/// pre_layernorm alone a last norm, and an output layer without bias that
/// shares the word embedding, which is divided by vocabulary.
///
/// Shapes: with labels the mean loss over them; without, logits_bSV; without
/// add_lm_head, hidden_bSI. The loss never gathers logits.
/// Children: word_embedding, position_embedding (but with rotary_pct or
/// use_alibi, where the attention knows positions), token_type_embedding,
/// transformer, layernorm.
/// Collective over the TP_GROUP. Threads: as torch::nn::Module.
/// Throws: ConfigError for the options; ShapeError for a sequence longer than
/// num_positions, or token types without num_token_types.
/// Source: Karakus et al. 2021, appendix I.3.
class DistributedTransformerLMHeadImpl : public DistributedModule {
 public:
  explicit DistributedTransformerLMHeadImpl(const TransformerOptions& options);
  at::Tensor forward(
      const at::Tensor& input_ids,
      const at::Tensor& attention_mask,
      const at::Tensor& token_type_ids,
      const at::Tensor& position_ids,
      const at::Tensor& cross_states,
      const at::Tensor& cross_mask,
      const at::Tensor& labels);
  at::Tensor run(const LMHeadInputs& inputs);

  TransformerOptions options;

 private:
  void check_inputs(const LMHeadInputs& inputs) const;
  at::Tensor
  embedded(const TensorParallel& parallel, const LMHeadInputs& inputs, const Lengths& samples);
  /// The last hidden states, in the inside placement.
  at::Tensor
  hidden_inside(const TensorParallel& parallel, const LMHeadInputs& inputs, const Lengths& samples);
  at::Tensor
  own_logits(const TensorParallel& parallel, const at::Tensor& hidden, const Lengths& samples);

  DistributedEmbedding word_embedding_{nullptr};
  DistributedTable position_embedding_{nullptr};
  DistributedTable token_type_embedding_{nullptr};
  DistributedTransformer transformer_{nullptr};
  DistributedLayerNorm layernorm_{nullptr};
  DistributedCrossEntropy loss_{nullptr};
};
TESSERA_MODULE(DistributedTransformerLMHead);

} // namespace tessera::nn
