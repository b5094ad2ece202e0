#pragma once

#include <tuple>

#include "models/layers.h"
#include "models/options.h"

// BERT and RoBERTa under the names and shapes of Hugging Face's checkpoints
// ("bert.encoder.layer.0.attention.self.query.weight", "cls.predictions.bias";
// "roberta.encoder...", "lm_head.bias").
// Source: Devlin et al. 2019, section 3; Liu et al. 2019, section 4.
namespace tessera::models {

/// Sum of three embeddings, normed. Shapes: ids_BS, token_types_BS (undefined:
/// zeros) -> x_BSI. RoBERTa counts positions from pad_token_id + 1 and gives
/// padding its own.
class BertEmbeddingsImpl : public torch::nn::Module {
 public:
  explicit BertEmbeddingsImpl(const BertOptions& options);
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& token_types);

  Embedding word_embeddings; // public: the masked head shares its weight

 private:
  BertOptions options_;
  Embedding position_embeddings_;
  Embedding token_type_embeddings_;
  LayerNorm layer_norm_;
};
TESSERA_MODULE(BertEmbeddings);

/// Shapes: x_BSI, bias broadcastable to BHSS or undefined -> y_BSI.
class BertSelfAttentionImpl : public torch::nn::Module {
 public:
  explicit BertSelfAttentionImpl(const BertOptions& options);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& bias);

 private:
  std::int64_t heads_;
  double dropout_;
  Linear query_, key_, value_;
};
TESSERA_MODULE(BertSelfAttention);

/// norm(residual + dense(x)). Shapes: x_BSi, residual_BSI -> y_BSI.
class BertOutputImpl : public torch::nn::Module {
 public:
  BertOutputImpl(const BertOptions& options, std::int64_t in);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual);

 private:
  double dropout_;
  Linear dense_;
  LayerNorm layer_norm_;
};
TESSERA_MODULE(BertOutput);

class BertAttentionImpl : public torch::nn::Module {
 public:
  explicit BertAttentionImpl(const BertOptions& options);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& bias);

 private:
  BertSelfAttention self_;
  BertOutput output_;
};
TESSERA_MODULE(BertAttention);

class BertIntermediateImpl : public torch::nn::Module {
 public:
  explicit BertIntermediateImpl(const BertOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  Linear dense_;
};
TESSERA_MODULE(BertIntermediate);

/// (x_BSI, bias) -> (y_BSI, bias), so that layers form a sequence.
class BertLayerImpl : public torch::nn::Module {
 public:
  explicit BertLayerImpl(const BertOptions& options);
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& bias);

  BertOptions options;

 private:
  BertAttention attention_;
  BertIntermediate intermediate_;
  BertOutput output_;
};
TESSERA_MODULE(BertLayer);

class BertEncoderImpl : public torch::nn::Module {
 public:
  explicit BertEncoderImpl(const BertOptions& options);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& bias);

 private:
  nn::Sequential layer_;
};
TESSERA_MODULE(BertEncoder);

/// tanh of a product over the first position. Shapes: hidden_BSI -> pooled_BI.
class BertPoolerImpl : public torch::nn::Module {
 public:
  explicit BertPoolerImpl(const BertOptions& options);
  at::Tensor forward(const at::Tensor& hidden);

 private:
  Linear dense_;
};
TESSERA_MODULE(BertPooler);

/// Shapes: ids_BS, mask_BS, token_types_BS -> hidden_BSI, pooled_BI
/// (undefined without a pooler).
class BertModelImpl : public torch::nn::Module {
 public:
  explicit BertModelImpl(const BertOptions& options);
  std::tuple<at::Tensor, at::Tensor>
  forward(const at::Tensor& ids, const at::Tensor& mask, const at::Tensor& token_types);

  BertEmbeddings embeddings; // public: the masked head shares its weight

 private:
  BertEncoder encoder_;
  BertPooler pooler_;
};
TESSERA_MODULE(BertModel);

class BertTransformImpl : public torch::nn::Module {
 public:
  explicit BertTransformImpl(const BertOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  Linear dense_;
  LayerNorm layer_norm_;
};
TESSERA_MODULE(BertTransform);

/// Scores of masked tokens. Shapes: hidden_BSI -> logits_BSV.
class BertPredictionsImpl : public torch::nn::Module {
 public:
  BertPredictionsImpl(const BertOptions& options, const at::Tensor& embedding);
  at::Tensor forward(const at::Tensor& hidden);

 private:
  at::Tensor bias_;
  BertTransform transform_;
  TiedLinear decoder_;
};
TESSERA_MODULE(BertPredictions);

class BertHeadsImpl : public torch::nn::Module {
 public:
  BertHeadsImpl(const BertOptions& options, const at::Tensor& embedding);
  /// The second is undefined without the head for pairs.
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& hidden, const at::Tensor& pooled);

 private:
  BertPredictions predictions_;
  Linear seq_relationship_;
};
TESSERA_MODULE(BertHeads);

/// Pre-training model of Devlin et al.: masked tokens and next sentence.
/// Shapes: ids_BS (int64), mask_BS with 1 for tokens, token_types_BS ->
/// logits_BSV, next_sentence_B2 (undefined without its head). Undefined mask: no padding. With
/// targets_BS their mean cross entropy instead of the logits, which no rank of a mesh gathers then.
/// Throws: ShapeError when the sequence exceeds the positions.
class BertImpl : public torch::nn::Module {
 public:
  explicit BertImpl(const BertOptions& options);
  std::tuple<at::Tensor, at::Tensor> forward(
      const at::Tensor& ids,
      const at::Tensor& mask = {},
      const at::Tensor& token_types = {},
      const at::Tensor& targets = {});

  const BertOptions& options() const {
    return options_;
  }

 private:
  BertOptions options_;
  BertModel bert_;
  BertHeads cls_;
};
TESSERA_MODULE(Bert);

class RobertaHeadImpl : public torch::nn::Module {
 public:
  RobertaHeadImpl(const BertOptions& options, const at::Tensor& embedding);
  at::Tensor forward(const at::Tensor& hidden);

 private:
  at::Tensor bias_;
  Linear dense_;
  LayerNorm layer_norm_;
  TiedLinear decoder_;
};
TESSERA_MODULE(RobertaHead);

/// Masked language model of Liu et al. Shapes: ids_BS, mask_BS -> logits_BSV.
class RobertaImpl : public torch::nn::Module {
 public:
  explicit RobertaImpl(const BertOptions& options);
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& mask = {});

 private:
  BertModel roberta_;
  RobertaHead lm_head_;
};
TESSERA_MODULE(Roberta);

} // namespace tessera::models
