#pragma once

#include <tuple>

#include "tessera/nn/layers/cross_entropy.h"
#include "tessera/nn/layers/lm_head.h"

#include "models/bert.h"
#include "models/state_names.h"

namespace tessera::models {

/// BERT whose activations stay on a mesh from the embeddings to its two heads:
/// the library's distributed layers under other names, see `bert_translation`.
/// With one-dimensional distributions its layers are replaced one by one.
///
/// Shapes: ids [b, s], mask [b, s], token types [b, s] -> logits [b, s, v], or
/// with targets [b, s] their mean cross entropy, and next sentence [b, 2]; all
/// of this rank alone. Undefined mask: no padding.
/// Calls are collective over the mesh. Threads: as torch::nn::Module.
/// Throws: ShapeError where it has no form for the distribution or the options.
/// Source: Xu et al. 2021, section 3.2.1.
class DistributedBertImpl : public nn::DistributedModule {
 public:
  explicit DistributedBertImpl(const BertImpl& original);
  std::tuple<at::Tensor, at::Tensor> forward(
      const at::Tensor& ids,
      const at::Tensor& mask,
      const at::Tensor& token_types,
      const at::Tensor& targets);

 private:
  at::Tensor
  embedded(const nn::TensorParallel& parallel, const at::Tensor& ids, const at::Tensor& types);
  /// Scores of the words of my mesh column.
  at::Tensor word_scores(const nn::TensorParallel& parallel, const at::Tensor& hidden);

  BertOptions options_;
  at::Tensor prediction_bias_;
  nn::summa::FirstRowVectors first_row_;
  nn::DistributedEmbedding word_embeddings_{nullptr};
  nn::DistributedTable position_embeddings_{nullptr};
  nn::DistributedTable token_type_embeddings_{nullptr};
  nn::DistributedLayerNorm embedding_norm_{nullptr};
  nn::DistributedTransformer transformer_{nullptr};
  nn::DistributedProjection pooler_{nullptr};
  nn::DistributedProjection transform_{nullptr};
  nn::DistributedLayerNorm transform_norm_{nullptr};
  nn::DistributedProjection seq_relationship_{nullptr};
  nn::DistributedCrossEntropy loss_{nullptr};
};
TESSERA_MODULE(DistributedBert);

/// Options and state of BERT's layers in the distributed transformer.
nn::TransformerOptions bert_layer_options(const BertOptions& options);
const StateTranslation& bert_layer_translation();

} // namespace tessera::models
