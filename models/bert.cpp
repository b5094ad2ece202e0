#include "models/bert.h"

#include <cmath>

#include <torch/torch.h>

#include "models/distributed_forms.h"

namespace tessera::models {

namespace {

LayerNorm make_norm(const BertOptions& options) {
  return LayerNorm(torch::nn::LayerNormOptions({options.hidden_size}).eps(options.layer_norm_eps));
}

Linear make_dense(const BertOptions& o, std::int64_t in, std::int64_t out) {
  return make_linear(in, out, o.initializer_range);
}

Linear make_dense(const BertOptions& o) {
  return make_dense(o, o.hidden_size, o.hidden_size);
}

std::int64_t inner_width(const BertOptions& o) {
  return o.intermediate_size == 0 ? 4 * o.hidden_size : o.intermediate_size;
}

} // namespace

BertEmbeddingsImpl::BertEmbeddingsImpl(const BertOptions& options)
    : word_embeddings(register_module(
          "word_embeddings",
          make_embedding(
              options.vocab_size,
              options.hidden_size,
              options.initializer_range,
              options.pad_token_id))),
      options_(options),
      position_embeddings_(register_module(
          "position_embeddings",
          make_embedding(
              options.max_position_embeddings,
              options.hidden_size,
              options.initializer_range,
              options.roberta ? options.pad_token_id : -1))),
      token_type_embeddings_(register_module(
          "token_type_embeddings",
          make_embedding(options.type_vocab_size, options.hidden_size, options.initializer_range))),
      layer_norm_(register_module("LayerNorm", make_norm(options))) {}

at::Tensor BertEmbeddingsImpl::forward(const at::Tensor& ids, const at::Tensor& token_types) {
  const auto reserved = options_.roberta ? options_.pad_token_id + 1 : 0;
  const auto longest = options_.max_position_embeddings - reserved;
  if (ids.dim() != 2 || ids.size(1) > longest) {
    throw ShapeError(tessera::str(
        options_.roberta ? "roberta" : "bert",
        ": ids are ",
        ids.sizes(),
        ", expected [batch, sequence] with a sequence of at most ",
        longest,
        " (max_position_embeddings)"));
  }
  at::Tensor places;
  if (options_.roberta) {
    const at::Tensor is_token = ids.ne(options_.pad_token_id).to(at::kLong);
    places = is_token.cumsum(1) * is_token + options_.pad_token_id;
  } else {
    places = at::arange(ids.size(1), ids.options());
  }
  // Without types all are of the first: one row, broadcast.
  const at::Tensor types = token_types.defined() ? token_types : at::zeros({1, 1}, ids.options());
  const at::Tensor sum =
      word_embeddings(ids) + position_embeddings_(places) + token_type_embeddings_(types);
  return drop(layer_norm_(sum), options_.hidden_dropout_prob, is_training());
}

BertSelfAttentionImpl::BertSelfAttentionImpl(const BertOptions& options)
    : heads_(options.num_attention_heads),
      dropout_(options.attention_probs_dropout_prob),
      query_(register_module("query", make_dense(options))),
      key_(register_module("key", make_dense(options))),
      value_(register_module("value", make_dense(options))) {}

at::Tensor BertSelfAttentionImpl::forward(const at::Tensor& x, const at::Tensor& bias) {
  const auto head_width = static_cast<double>(x.size(2) / heads_);
  return attend(
      split_heads(query_(x), heads_),
      split_heads(key_(x), heads_),
      split_heads(value_(x), heads_),
      bias,
      heads_,
      1 / std::sqrt(head_width),
      is_training() ? dropout_ : 0);
}

BertOutputImpl::BertOutputImpl(const BertOptions& options, std::int64_t in)
    : dropout_(options.hidden_dropout_prob),
      dense_(register_module("dense", make_dense(options, in, options.hidden_size))),
      layer_norm_(register_module("LayerNorm", make_norm(options))) {}

at::Tensor BertOutputImpl::forward(const at::Tensor& x, const at::Tensor& residual) {
  return layer_norm_(drop(dense_(x), dropout_, is_training()) + residual);
}

BertAttentionImpl::BertAttentionImpl(const BertOptions& options)
    : self_(register_module("self", BertSelfAttention(options))),
      output_(register_module("output", BertOutput(options, options.hidden_size))) {}

at::Tensor BertAttentionImpl::forward(const at::Tensor& x, const at::Tensor& bias) {
  return output_(self_(x, bias), x);
}

BertIntermediateImpl::BertIntermediateImpl(const BertOptions& options)
    : dense_(register_module(
          "dense",
          make_dense(options, options.hidden_size, inner_width(options)))) {}

at::Tensor BertIntermediateImpl::forward(const at::Tensor& x) {
  return at::gelu(dense_(x));
}

BertLayerImpl::BertLayerImpl(const BertOptions& options)
    : options(options),
      attention_(register_module("attention", BertAttention(options))),
      intermediate_(register_module("intermediate", BertIntermediate(options))),
      output_(register_module("output", BertOutput(options, inner_width(options)))) {}

std::tuple<at::Tensor, at::Tensor> BertLayerImpl::forward(
    const at::Tensor& x,
    const at::Tensor& bias) {
  const at::Tensor attended = attention_(x, bias);
  return {output_(intermediate_(attended), attended), bias};
}

BertEncoderImpl::BertEncoderImpl(const BertOptions& options)
    : layer_(register_module("layer", nn::Sequential())) {
  for (std::int64_t i = 0; i < options.num_hidden_layers; ++i) {
    layer_->push_back(BertLayer(options));
  }
}

at::Tensor BertEncoderImpl::forward(const at::Tensor& x, const at::Tensor& bias) {
  return std::get<0>(layer_->forward_as<std::tuple<at::Tensor, at::Tensor>>(x, bias));
}

BertPoolerImpl::BertPoolerImpl(const BertOptions& options)
    : dense_(register_module("dense", make_dense(options))) {}

at::Tensor BertPoolerImpl::forward(const at::Tensor& hidden) {
  return at::tanh(dense_(hidden.select(1, 0)));
}

BertModelImpl::BertModelImpl(const BertOptions& options)
    : embeddings(register_module("embeddings", BertEmbeddings(options))),
      encoder_(register_module("encoder", BertEncoder(options))),
      pooler_(nullptr) {
  if (!options.roberta && options.next_sentence) {
    pooler_ = register_module("pooler", BertPooler(options));
  }
}

std::tuple<at::Tensor, at::Tensor> BertModelImpl::forward(
    const at::Tensor& ids,
    const at::Tensor& mask,
    const at::Tensor& token_types) {
  const at::Tensor x = embeddings(ids, token_types);
  const at::Tensor hidden = encoder_(x, padding_bias(mask, x.scalar_type()));
  return {hidden, pooler_.is_empty() ? at::Tensor() : pooler_(hidden)};
}

BertTransformImpl::BertTransformImpl(const BertOptions& options)
    : dense_(register_module("dense", make_dense(options))),
      layer_norm_(register_module("LayerNorm", make_norm(options))) {}

at::Tensor BertTransformImpl::forward(const at::Tensor& x) {
  return layer_norm_(at::gelu(dense_(x)));
}

BertPredictionsImpl::BertPredictionsImpl(const BertOptions& options, const at::Tensor& embedding)
    : bias_(register_parameter("bias", torch::zeros({options.vocab_size}))),
      transform_(register_module("transform", BertTransform(options))),
      decoder_(register_module("decoder", TiedLinear(embedding))) {}

at::Tensor BertPredictionsImpl::forward(const at::Tensor& hidden) {
  return decoder_(transform_(hidden)) + bias_;
}

BertHeadsImpl::BertHeadsImpl(const BertOptions& options, const at::Tensor& embedding)
    : predictions_(register_module("predictions", BertPredictions(options, embedding))),
      seq_relationship_(nullptr) {
  if (options.next_sentence) {
    seq_relationship_ =
        register_module("seq_relationship", make_dense(options, options.hidden_size, 2));
  }
}

std::tuple<at::Tensor, at::Tensor> BertHeadsImpl::forward(
    const at::Tensor& hidden,
    const at::Tensor& pooled) {
  return {
      predictions_(hidden),
      seq_relationship_.is_empty() ? at::Tensor() : seq_relationship_(pooled)};
}

BertImpl::BertImpl(const BertOptions& options)
    : options_(options),
      bert_(register_module("bert", BertModel(options))),
      cls_(register_module("cls", BertHeads(options, bert_->embeddings->word_embeddings->weight))) {
}

std::tuple<at::Tensor, at::Tensor> BertImpl::forward(
    const at::Tensor& ids,
    const at::Tensor& mask,
    const at::Tensor& token_types,
    const at::Tensor& targets) {
  const auto encoded = bert_(ids, mask, token_types);
  const auto scores = cls_(std::get<0>(encoded), std::get<1>(encoded));
  if (!targets.defined()) {
    return scores;
  }
  return {cross_entropy(std::get<0>(scores), targets), std::get<1>(scores)};
}

RobertaHeadImpl::RobertaHeadImpl(const BertOptions& options, const at::Tensor& embedding)
    : bias_(register_parameter("bias", torch::zeros({options.vocab_size}))),
      dense_(register_module("dense", make_dense(options))),
      layer_norm_(register_module("layer_norm", make_norm(options))),
      decoder_(register_module("decoder", TiedLinear(embedding))) {}

at::Tensor RobertaHeadImpl::forward(const at::Tensor& hidden) {
  return decoder_(layer_norm_(at::gelu(dense_(hidden)))) + bias_;
}

RobertaImpl::RobertaImpl(const BertOptions& options)
    : roberta_(register_module("roberta", BertModel(options))),
      lm_head_(register_module(
          "lm_head",
          RobertaHead(options, roberta_->embeddings->word_embeddings->weight))) {}

at::Tensor RobertaImpl::forward(const at::Tensor& ids, const at::Tensor& mask) {
  return lm_head_(std::get<0>(roberta_(ids, mask, at::Tensor())));
}

namespace {
[[maybe_unused]] const bool kBertDistributed = register_bert_distributed();
} // namespace

} // namespace tessera::models
