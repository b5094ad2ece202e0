#include "models/two_d/bert_2d.h"

#include <torch/torch.h>

#include "tessera/base/error.h"
#include "tessera/nn/summa/row0.h"

namespace tessera::models {

namespace {

using nn::two_d::Boundary;
using nn::two_d::Linear2DOptions;
using nn::two_d::Mesh;
using nn::two_d::TiedLinear2D;
using nn::two_d::Transformer2DOptions;

Blocks bert_hidden(const BertOptions& options, const Mesh& mesh) {
  return Transformer2DOptions(options.hidden_size, options.num_attention_heads).hidden_blocks(mesh);
}

Blocks bert_inner(const BertOptions& o, const Mesh& mesh) {
  return Blocks(o.intermediate_size == 0 ? 4 * o.hidden_size : o.intermediate_size, mesh.side());
}

Linear2D bert_dense(const Blocks& in, const Blocks& out) {
  return Linear2D(Linear2DOptions(in, out));
}

LayerNorm2D bert_norm(const BertOptions& options, const Mesh& mesh) {
  return LayerNorm2D(bert_hidden(options, mesh), options.layer_norm_eps);
}

// Next sentence or not, and the two token types: fewer than some meshes have
// rows, so that some ranks hold none.
Blocks few(std::int64_t length, const Mesh& mesh) {
  return Blocks(length, mesh.side(), 1, /*may_be_empty=*/true);
}

} // namespace

BertEmbeddings2DImpl::BertEmbeddings2DImpl(const BertOptions& o)
    : word_embeddings(register_module(
          "word_embeddings",
          Embedding2D(
              Blocks(o.vocab_size, mesh()->side()),
              bert_hidden(o, *mesh()),
              o.pad_token_id))),
      positions_(o.max_position_embeddings),
      dropout_(o.hidden_dropout_prob),
      position_embeddings_(register_module(
          "position_embeddings",
          Embedding2D(Blocks(o.max_position_embeddings, mesh()->side()), bert_hidden(o, *mesh())))),
      token_type_embeddings_(register_module(
          "token_type_embeddings",
          Embedding2D(few(o.type_vocab_size, *mesh()), bert_hidden(o, *mesh())))),
      layer_norm_(register_module("LayerNorm", bert_norm(o, *mesh()))) {
  if (o.roberta) {
    throw ShapeError("RoBERTa's positions count tokens; only BERT runs on a mesh");
  }
}

at::Tensor BertEmbeddings2DImpl::forward(const at::Tensor& ids, const at::Tensor& token_types) {
  if (ids.dim() != 2 || ids.size(1) > positions_) {
    throw ShapeError(tessera::str(
        "bert: ids are ",
        ids.sizes(),
        ", expected [batch, sequence] with a sequence of at most ",
        positions_,
        " (max_position_embeddings)"));
  }
  const at::Tensor places = at::arange(ids.size(1), ids.options());
  const at::Tensor types = token_types.defined() ? token_types : at::zeros({1, 1}, ids.options());
  const at::Tensor sum =
      word_embeddings(ids) + position_embeddings_(places) + token_type_embeddings_(types);
  return drop(layer_norm_(sum), dropout_, is_training());
}

BertSelfAttention2DImpl::BertSelfAttention2DImpl(const BertOptions& o)
    : head_width_(o.hidden_size / o.num_attention_heads),
      dropout_(o.attention_probs_dropout_prob),
      query_(nullptr),
      key_(nullptr),
      value_(nullptr) {
  const Blocks hidden = bert_hidden(o, *mesh());
  query_ = register_module("query", bert_dense(hidden, hidden));
  key_ = register_module("key", bert_dense(hidden, hidden));
  value_ = register_module("value", bert_dense(hidden, hidden));
}

at::Tensor BertSelfAttention2DImpl::forward(const at::Tensor& x, const at::Tensor& bias) {
  return nn::two_d::attend_locally(
      query_(x),
      key_(x),
      value_(x),
      head_width_,
      /*causal=*/false,
      bias,
      is_training() ? dropout_ : 0);
}

BertOutput2DImpl::BertOutput2DImpl(const BertOptions& o, const Blocks& in)
    : dropout_(o.hidden_dropout_prob),
      dense_(register_module("dense", bert_dense(in, bert_hidden(o, *mesh())))),
      layer_norm_(register_module("LayerNorm", bert_norm(o, *mesh()))) {}

at::Tensor BertOutput2DImpl::forward(const at::Tensor& x, const at::Tensor& residual) {
  return layer_norm_(drop(dense_(x), dropout_, is_training()) + residual);
}

BertAttention2DImpl::BertAttention2DImpl(const BertOptions& o)
    : self_(register_module("self", BertSelfAttention2D(o))),
      output_(register_module("output", BertOutput2D(o, bert_hidden(o, *mesh())))) {}

at::Tensor BertAttention2DImpl::forward(const at::Tensor& x, const at::Tensor& bias) {
  return output_(self_(x, bias), x);
}

BertIntermediate2DImpl::BertIntermediate2DImpl(const BertOptions& o)
    : dense_(
          register_module("dense", bert_dense(bert_hidden(o, *mesh()), bert_inner(o, *mesh())))) {}

at::Tensor BertIntermediate2DImpl::forward(const at::Tensor& x) {
  return at::gelu(dense_(x));
}

BertLayer2DImpl::BertLayer2DImpl(const BertOptions& o)
    : attention_(register_module("attention", BertAttention2D(o))),
      intermediate_(register_module("intermediate", BertIntermediate2D(o))),
      output_(register_module("output", BertOutput2D(o, bert_inner(o, *mesh())))) {}

std::tuple<at::Tensor, at::Tensor> BertLayer2DImpl::forward(
    const at::Tensor& x,
    const at::Tensor& bias) {
  const at::Tensor attended = attention_(x, bias);
  return {output_(intermediate_(attended), attended), bias};
}

BertEncoder2DImpl::BertEncoder2DImpl(const BertOptions& options)
    : layer_(register_module("layer", nn::Sequential())) {
  for (std::int64_t i = 0; i < options.num_hidden_layers; ++i) {
    layer_->push_back(BertLayer2D(options));
  }
}

at::Tensor BertEncoder2DImpl::forward(const at::Tensor& x, const at::Tensor& bias) {
  return std::get<0>(layer_->forward_as<std::tuple<at::Tensor, at::Tensor>>(x, bias));
}

BertPooler2DImpl::BertPooler2DImpl(const BertOptions& o)
    : dense_(
          register_module("dense", bert_dense(bert_hidden(o, *mesh()), bert_hidden(o, *mesh())))) {}

at::Tensor BertPooler2DImpl::forward(const at::Tensor& hidden) {
  return at::tanh(dense_(hidden.select(1, 0)));
}

BertModel2DImpl::BertModel2DImpl(const BertOptions& options)
    : embeddings(register_module("embeddings", BertEmbeddings2D(options))),
      encoder_(register_module("encoder", BertEncoder2D(options))),
      pooler_(register_module("pooler", BertPooler2D(options))) {}

std::tuple<at::Tensor, at::Tensor> BertModel2DImpl::forward(
    const at::Tensor& ids,
    const at::Tensor& mask,
    const at::Tensor& token_types) {
  const at::Tensor x = embeddings(ids, token_types);
  const at::Tensor hidden = encoder_(x, padding_bias(mask, x.scalar_type()));
  return {hidden, pooler_(hidden)};
}

BertTransform2DImpl::BertTransform2DImpl(const BertOptions& o)
    : dense_(
          register_module("dense", bert_dense(bert_hidden(o, *mesh()), bert_hidden(o, *mesh())))),
      layer_norm_(register_module("LayerNorm", bert_norm(o, *mesh()))) {}

at::Tensor BertTransform2DImpl::forward(const at::Tensor& x) {
  return layer_norm_(at::gelu(dense_(x)));
}

BertPredictions2DImpl::BertPredictions2DImpl(
    const BertOptions& o,
    const nn::two_d::Embedding2DImpl& words)
    : bias_(register_row0("bias", Blocks(o.vocab_size, mesh()->side()))),
      transform_(register_module("transform", BertTransform2D(o))),
      decoder_(register_module(
          "decoder",
          TiedLinear2D(words, Blocks(o.vocab_size, mesh()->side()), bert_hidden(o, *mesh())))) {}

at::Tensor BertPredictions2DImpl::forward(const at::Tensor& hidden) {
  agree_on_row0();
  return nn::two_d::add_from_row0(mesh(), decoder_(transform_(hidden)), bias_);
}

BertHeads2DImpl::BertHeads2DImpl(const BertOptions& o, const nn::two_d::Embedding2DImpl& words)
    : predictions_(register_module("predictions", BertPredictions2D(o, words))),
      seq_relationship_(register_module(
          "seq_relationship",
          bert_dense(bert_hidden(o, *mesh()), few(2, *mesh())))) {}

std::tuple<at::Tensor, at::Tensor> BertHeads2DImpl::forward(
    const at::Tensor& hidden,
    const at::Tensor& pooled) {
  return {predictions_(hidden), seq_relationship_(pooled)};
}

Bert2DImpl::Bert2DImpl(const BertOptions& o)
    : vocabulary_(o.vocab_size, mesh()->side()),
      boundary_(mesh(), parallel().prescaled_batch),
      bert_(register_module("bert", BertModel2D(o))),
      cls_(register_module("cls", BertHeads2D(o, *bert_->embeddings->word_embeddings))) {}

std::tuple<at::Tensor, at::Tensor>
Bert2DImpl::forward(const at::Tensor& ids, const at::Tensor& mask, const at::Tensor& token_types) {
  const auto encoded = bert_(
      boundary_.samples_of_row(ids),
      boundary_.samples_of_row(mask),
      boundary_.samples_of_row(token_types));
  const auto scores = cls_(std::get<0>(encoded), std::get<1>(encoded));
  return {
      boundary_.leave(std::get<0>(scores), vocabulary_),
      boundary_.leave(std::get<1>(scores), few(2, *mesh()))};
}

} // namespace tessera::models
