#include "models/bert_distributed.h"

#include <torch/torch.h>

#include "tessera/base/error.h"
#include "tessera/nn/layers/dropout.h"
#include "tessera/nn/replace/replacement_registry.h"
#include "tessera/nn/replace/transformer_given.h"
#include "tessera/nn/summa/boundary.h"

#include "models/distributed_forms.h"

namespace tessera::models {

namespace {

const BertOptions& checked(const BertOptions& options) {
  if (!options.next_sentence) {
    throw ShapeError(
        "its layers are replaced one by one; as a whole it has both heads (next_sentence is "
        "false)");
  }
  if (nn::tensor_parallel().distribution != nn::Distribution::kTwoD) {
    throw ShapeError("its layers are replaced one by one; as a whole it has a form on a mesh only");
  }
  return options;
}

nn::DistributedProjection linear_on_mesh(const BertOptions& o, std::int64_t out) {
  return nn::DistributedProjection(
      nn::DistributedProjectionImpl::Direction::kInto,
      o.hidden_size,
      nn::FeatureSplit{1, out, 1},
      bert_layer_options(o));
}

StateTranslation bert_translation(const BertOptions& options) {
  StateTranslation all;
  for (const char* table : {"word_embeddings", "position_embeddings", "token_type_embeddings"}) {
    all.tensor(tessera::str("bert.embeddings.", table, ".weight"), tessera::str(table, ".weight"));
  }
  all.linear("bert.embeddings.LayerNorm", "embedding_norm")
      .linear("bert.pooler.dense", "pooler")
      .tensor("cls.predictions.bias", "prediction_bias")
      .linear("cls.predictions.transform.dense", "transform")
      .linear("cls.predictions.transform.LayerNorm", "transform_norm")
      .linear("cls.seq_relationship", "seq_relationship");
  for (std::int64_t i = 0; i < options.num_hidden_layers; ++i) {
    all.part(
        tessera::str("bert.encoder.layer.", i, "."),
        tessera::str("transformer.seq_layers.", i, "."),
        bert_layer_translation());
  }
  return all;
}

} // namespace

DistributedBertImpl::DistributedBertImpl(const BertImpl& original)
    : options_(checked(original.options())) {
  const auto& o = options_;
  nn::TransformerOptions layers = bert_layer_options(o);
  layers.num_layers = o.num_hidden_layers;
  const nn::Blocks words =
      nn::mesh_blocks(parallel(), o.vocab_size, "bert: vocab_size").over_columns;
  word_embeddings_ = register_module(
      "word_embeddings",
      nn::DistributedEmbedding(nn::DistributedEmbeddingOptions{
          .num_embeddings = o.vocab_size,
          .embedding_dim = o.hidden_size,
          .padding_idx = o.pad_token_id,
          .initializer_range = o.initializer_range}));
  const auto table = [&](const char* name, std::int64_t rows) {
    return register_module(name, nn::DistributedTable(rows, o.hidden_size, layers));
  };
  position_embeddings_ = table("position_embeddings", o.max_position_embeddings);
  token_type_embeddings_ = table("token_type_embeddings", o.type_vocab_size);
  embedding_norm_ = register_module("embedding_norm", nn::make_part_norm(layers));
  transformer_ = register_module("transformer", nn::DistributedTransformer(layers));
  pooler_ = register_module("pooler", linear_on_mesh(o, o.hidden_size));
  transform_ = register_module("transform", linear_on_mesh(o, o.hidden_size));
  transform_norm_ = register_module("transform_norm", nn::make_part_norm(layers));
  seq_relationship_ = register_module("seq_relationship", linear_on_mesh(o, 2));
  prediction_bias_ = first_row_.create(
      *parallel().mesh,
      nn::parameter_creation_scope(*this),
      "prediction_bias",
      words,
      1,
      nn::constant(0));
  loss_ =
      nn::DistributedCrossEntropy(nn::DistributedCrossEntropyOptions{o.vocab_size, kIgnoredTarget});
}

at::Tensor DistributedBertImpl::embedded(
    const nn::TensorParallel& parallel,
    const at::Tensor& ids,
    const at::Tensor& types) {
  const at::Tensor places = at::arange(ids.size(1), ids.options());
  const at::Tensor sum =
      word_embeddings_->look_up_on_mesh(parallel, ids) + position_embeddings_->forward(places) +
      token_type_embeddings_->forward(types.defined() ? types : at::zeros({1, 1}, ids.options()));
  return nn::drop(
      parallel,
      embedding_norm_->forward(sum),
      nn::Placement::kOnMesh,
      options_.hidden_dropout_prob,
      is_training(),
      options_.hidden_size);
}

at::Tensor DistributedBertImpl::word_scores(
    const nn::TensorParallel& parallel,
    const at::Tensor& hidden) {
  first_row_.agree(*parallel.mesh);
  const at::Tensor transformed =
      transform_norm_->forward(at::gelu(transform_->forward(hidden, {})));
  const at::Tensor scores = nn::summa::tied_linear(
      parallel.mesh,
      transformed,
      word_embeddings_->weight,
      nn::mesh_blocks(parallel, options_.vocab_size, "bert: vocab_size"),
      options_.hidden_size);
  return nn::summa::add_from_first_row(parallel.mesh, scores, prediction_bias_);
}

std::tuple<at::Tensor, at::Tensor> DistributedBertImpl::forward(
    const at::Tensor& ids,
    const at::Tensor& mask,
    const at::Tensor& token_types,
    const at::Tensor& targets) {
  if (ids.dim() != 2 || ids.size(1) > options_.max_position_embeddings) {
    throw ShapeError(tessera::str(
        "bert: ids are ",
        ids.sizes(),
        ", expected [batch, sequence] with a sequence of at most ",
        options_.max_position_embeddings,
        " (max_position_embeddings)"));
  }
  const nn::TensorParallel parallel = parallel_now();
  const nn::summa::Boundary boundary(parallel.mesh, parallel.prescaled_batch);
  const nn::Lengths samples = nn::samples_of_ranks(parallel, ids.size(0));
  const at::Tensor x =
      embedded(parallel, boundary.samples_of_row(ids), boundary.samples_of_row(token_types));
  const at::Tensor mask_here = nn::mask_for_heads(
      parallel,
      padding_bias(mask, x.scalar_type()),
      nn::HeadGroups{options_.num_attention_heads},
      /*own=*/true,
      samples);
  const at::Tensor hidden = transformer_->forward_part(x, mask_here, {}, {});
  const at::Tensor pooled = at::tanh(pooler_->forward(hidden.select(1, 0), {}));
  const at::Tensor scores = word_scores(parallel, hidden);
  const nn::Blocks two = nn::FeatureSplit{1, 2, 1}.blocks(parallel.mesh->columns());
  return {
      targets.defined() ? loss_->forward(scores, targets)
                        : nn::leave(parallel, scores, options_.vocab_size, samples),
      boundary.leave(seq_relationship_->forward(pooled, {}), two)};
}

nn::TransformerOptions bert_layer_options(const BertOptions& from) {
  nn::TransformerOptions to;
  to.num_attention_heads = from.num_attention_heads;
  to.attention_head_size = from.hidden_size / from.num_attention_heads;
  to.hidden_size = from.hidden_size;
  to.intermediate_size =
      from.intermediate_size == 0 ? 4 * from.hidden_size : from.intermediate_size;
  to.attention_dropout_prob = from.attention_probs_dropout_prob;
  to.hidden_dropout_prob = from.hidden_dropout_prob;
  to.activation = "gelu";
  to.layernorm_epsilon = from.layer_norm_eps;
  to.initializer_range = from.initializer_range;
  to.use_normal_initialization = true;
  to.pre_layernorm = false;
  to.post_layernorm = true;
  return to;
}

const StateTranslation& bert_layer_translation() {
  static const StateTranslation layer = [] {
    StateTranslation of;
    of.linear("attention.output.dense", "attention.dense")
        .linear("attention.output.LayerNorm", "attention.layernorm")
        .linear("intermediate.dense", "output.dense1")
        .linear("output.dense", "output.dense2")
        .linear("output.LayerNorm", "output.layernorm");
    for (const char* tensor : {".weight", ".bias"}) {
      const auto name = [&](const char* part) {
        return std::string("attention.self.") + part + tensor;
      };
      of.joined(
          {name("query"), name("key"), name("value")},
          std::string("attention.query_key_value") + tensor);
    }
    return of;
  }();
  return layer;
}

bool register_bert_distributed() {
  bert_layer_translation().given_to(
      tp_register_with_module<BertLayer, nn::DistributedTransformerLayer>()
          .init([](const BertLayerImpl& layer, const nn::GivenOptions& given) {
            return nn::with_given(given, bert_layer_options(layer.options));
          })
          .forward([](const at::Tensor& x, const at::Tensor& bias) {
            return std::make_tuple(x, bias, at::Tensor(), at::Tensor());
          })
          .returns([](const nn::TransformerState& state) {
            return std::make_tuple(std::get<0>(state), std::get<1>(state));
          }));
  tp_register_with_module<Bert, DistributedBert>().state(
      [](const nn::StateMap& state, const BertImpl& bert) {
        return bert_translation(bert.options()).to_distributed(state);
      },
      [](const nn::StateMap& state, const BertImpl& bert) {
        return bert_translation(bert.options()).to_original(state);
      });
  return true;
}

} // namespace tessera::models
