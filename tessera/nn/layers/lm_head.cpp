#include "tessera/nn/layers/lm_head.h"

#include <limits>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/layers/distributed_product.h"
#include "tessera/nn/layers/dropout.h"
#include "tessera/nn/layers/first_keys.h"
#include "tessera/nn/layers/placement.h"
#include "tessera/nn/parallel/parameter_creation.h"
#include "tessera/nn/summa/boundary.h"
#include "tessera/nn/summa/functional.h"

namespace tessera::nn {

namespace {

/// 1 where masked -> the lowest finite number to add there: a row without any
/// key is uniform, not NaN. First keys stay as they are.
at::Tensor additive_mask(const at::Tensor& masked, at::ScalarType dtype) {
  if (!masked.defined() || is_first_keys(masked)) {
    return masked;
  }
  const double lowest =
      dtype == at::kHalf ? -65504.0 : -static_cast<double>(std::numeric_limits<float>::max()) / 2;
  const std::vector<std::int64_t> sizes{masked.size(0), 1, 1, masked.size(1)};
  return at::zeros(sizes, masked.options().dtype(dtype))
      .masked_fill_(masked.ne(0).view(sizes), lowest);
}

} // namespace

DistributedTableImpl::DistributedTableImpl(
    std::int64_t rows,
    std::int64_t width,
    const TransformerOptions& options)
    : rows_(rows) {
  const auto create = parameter_creation_scope(*this, creation_for(parallel()));
  const Initializer initializer = normal(options.initializer_range);
  switch (inside_placement(parallel())) {
    case Placement::kOnMesh: {
      const summa::Mesh& mesh = *summa::mesh_of(parallel());
      const Blocks columns = mesh_blocks(parallel(), width, "hidden_size").over_columns;
      weight = create.initialize_shard(
          "weight",
          block_of_matrix(rows_on_mesh().over_rows, mesh.row(), columns, mesh.column()),
          initializer);
      break;
    }
    case Placement::kSharded:
      weight = create.initialize_with_input_partition("weight", {rows, width}, initializer);
      break;
    default:
      weight = create.initialize_whole("weight", {rows, width}, initializer);
  }
}

summa::MeshBlocks DistributedTableImpl::rows_on_mesh() const {
  return {*parallel().mesh, rows_, 1, /*may_be_empty=*/true};
}

at::Tensor DistributedTableImpl::forward(const at::Tensor& ids) {
  const ForwardScope present(*this);
  const TensorParallel parallel = parallel_now();
  return inside_placement(parallel) == Placement::kOnMesh
             ? summa::embedding(parallel.mesh, weight, ids, rows_on_mesh())
             : at::embedding(weight, ids);
}

DistributedTransformerLMHeadImpl::DistributedTransformerLMHeadImpl(const TransformerOptions& given)
    : options(given) {
  const auto& o = options;
  check_options("DistributedTransformerLMHead", o, parallel());
  word_embedding_ = register_module(
      "word_embedding",
      DistributedEmbedding(DistributedEmbeddingOptions{
          .num_embeddings = o.vocab_size,
          .embedding_dim = o.hidden_size,
          .initializer_range = o.initializer_range,
          .split = EmbeddingSplit::kVocabulary}));
  if (!positions_in_attention(o)) {
    position_embedding_ =
        register_module("position_embedding", DistributedTable(o.num_positions, o.hidden_size, o));
  }
  if (o.num_token_types > 0) {
    token_type_embedding_ = register_module(
        "token_type_embedding", DistributedTable(o.num_token_types, o.hidden_size, o));
  }
  transformer_ = register_module("transformer", DistributedTransformer(o));
  if (o.pre_layernorm && !o.post_layernorm) {
    layernorm_ = register_module("layernorm", make_part_norm(o));
  }
  loss_ = DistributedCrossEntropy(DistributedCrossEntropyOptions{o.vocab_size});
}

at::Tensor DistributedTransformerLMHeadImpl::embedded(
    const TensorParallel& parallel,
    const LMHeadInputs& inputs,
    const Lengths& samples) {
  const Placement inside = inside_placement(parallel);
  const auto everybodys = [&](const at::Tensor& ids) {
    return parallel.prescaled_batch ? ids : gather(parallel, ids, 0, samples);
  };
  // Ids of the samples that are embedded here.
  const auto here = [&](const at::Tensor& ids) {
    if (inside == Placement::kOnMesh) {
      return summa::Boundary(parallel.mesh, parallel.prescaled_batch).samples_of_row(ids);
    }
    return inside == Placement::kSharded ? everybodys(ids) : ids;
  };
  const at::Tensor& ids = inputs.input_ids;
  at::Tensor x = inside == Placement::kOnMesh
                     ? word_embedding_->look_up_on_mesh(parallel, here(ids))
                     : sum_of_partials(
                           parallel,
                           word_embedding_->look_up_own_rows(parallel, everybodys(ids)),
                           inside,
                           samples);
  if (!position_embedding_.is_empty()) {
    x = x + position_embedding_->forward(
                inputs.position_ids.defined()
                    ? here(inputs.position_ids)
                    : at::arange(ids.size(1), ids.options()).unsqueeze(0));
  }
  if (!token_type_embedding_.is_empty()) {
    x = x + token_type_embedding_->forward(
                inputs.token_type_ids.defined() ? here(inputs.token_type_ids)
                                                : at::zeros({1, 1}, ids.options()));
  }
  return drop(parallel, x, inside, options.hidden_dropout_prob, is_training(), options.hidden_size);
}

at::Tensor DistributedTransformerLMHeadImpl::own_logits(
    const TensorParallel& parallel,
    const at::Tensor& hidden,
    const Lengths& samples) {
  if (inside_placement(parallel) == Placement::kOnMesh) {
    return summa::tied_linear(
        parallel.mesh,
        hidden,
        word_embedding_->weight,
        mesh_blocks(parallel, options.vocab_size, "DistributedTransformerLMHead: vocab_size"),
        options.hidden_size);
  }
  const std::int64_t positions = hidden.size(1);
  ProductPlan plan;
  switch (inside_placement(parallel)) {
    case Placement::kSharded:
      plan.operand = Operand::kShardedToWhole;
      plan.in = even_lengths(options.hidden_size, parallel.size());
      break;
    case Placement::kReplicated:
      plan.operand = Operand::kReplicated;
      break;
    case Placement::kOwnSamples:
      plan.operand = Operand::kOwnSamples;
      for (const std::int64_t count : samples) {
        plan.rows.push_back(count * positions);
      }
      break;
    case Placement::kOnMesh:
      break; // above
  }
  const at::Tensor logits = distributed_product(
      parallel, plan, hidden.reshape({-1, hidden.size(2)}), word_embedding_->weight, {});
  return logits.view({logits.size(0) / positions, positions, logits.size(1)});
}

void DistributedTransformerLMHeadImpl::check_inputs(const LMHeadInputs& inputs) const {
  const auto& o = options;
  const at::Tensor& ids = inputs.input_ids;
  if (ids.dim() != 2 || ids.size(1) > o.num_positions) {
    throw ShapeError(tessera::str(
        "DistributedTransformerLMHead: input_ids have sizes ",
        ids.sizes(),
        "; expected [batch, sequence] with a sequence of at most ",
        o.num_positions,
        " (num_positions)"));
  }
  if (inputs.position_ids.defined() && position_embedding_.is_empty()) {
    throw ShapeError(
        "DistributedTransformerLMHead: position_ids are given, but with rotary_pct or use_alibi "
        "the attention itself knows positions, which count from 0; leave them out");
  }
  if (inputs.token_type_ids.defined() && token_type_embedding_.is_empty()) {
    throw ShapeError(
        "DistributedTransformerLMHead: token_type_ids are given but "
        "num_token_types is 0");
  }
  if (inputs.labels.defined() && !o.add_lm_head) {
    throw ShapeError(
        "DistributedTransformerLMHead: labels are given but add_lm_head is "
        "false");
  }
  if (o.add_cross_attention != inputs.cross_states.defined()) {
    throw ShapeError(tessera::str(
        "DistributedTransformerLMHead: add_cross_attention is ",
        o.add_cross_attention ? "true" : "false",
        " but cross_states are ",
        inputs.cross_states.defined() ? "given" : "not given"));
  }
}

at::Tensor DistributedTransformerLMHeadImpl::hidden_inside(
    const TensorParallel& parallel,
    const LMHeadInputs& inputs,
    const Lengths& samples) {
  const HeadGroups heads = head_groups(options);
  const at::ScalarType dtype = word_embedding_->weight.scalar_type();
  const bool own = !parallel.prescaled_batch; // 0/1 masks are of samples
  const at::Tensor embedded_here = embedded(parallel, inputs, samples);
  const at::Tensor mask =
      mask_for_heads(parallel, additive_mask(inputs.attention_mask, dtype), heads, own, samples);
  at::Tensor cross_states;
  at::Tensor cross_mask;
  if (inputs.cross_states.defined()) {
    cross_states = enter(parallel, inputs.cross_states, samples);
    cross_mask =
        mask_for_heads(parallel, additive_mask(inputs.cross_mask, dtype), heads, own, samples);
  }
  const at::Tensor x = transformer_->forward_part(embedded_here, mask, cross_states, cross_mask);
  return layernorm_.is_empty() ? x : layernorm_->forward_to(x, dtype);
}

at::Tensor DistributedTransformerLMHeadImpl::run(const LMHeadInputs& inputs) {
  check_inputs(inputs);
  const TensorParallel parallel = parallel_now();
  const Lengths samples = samples_of_ranks(parallel, inputs.input_ids.size(0));
  const at::Tensor x = hidden_inside(parallel, inputs, samples);
  if (!options.add_lm_head) {
    return leave(parallel, x, options.hidden_size, samples);
  }
  const at::Tensor logits = own_logits(parallel, x, samples);
  if (inputs.labels.defined()) {
    return loss_->forward(logits, inputs.labels);
  }
  if (inside_placement(parallel) == Placement::kOnMesh) {
    return leave(parallel, logits, options.vocab_size, samples);
  }
  return parallel.prescaled_batch ? gather_channels(parallel, logits, options.vocab_size)
                                  : shard_to_samples(parallel, logits, options.vocab_size, samples);
}

at::Tensor DistributedTransformerLMHeadImpl::forward(
    const at::Tensor& input_ids,
    const at::Tensor& attention_mask,
    const at::Tensor& token_type_ids,
    const at::Tensor& position_ids,
    const at::Tensor& cross_states,
    const at::Tensor& cross_mask,
    const at::Tensor& labels) {
  const ForwardScope present(*this);
  return run(
      {input_ids, attention_mask, token_type_ids, position_ids, cross_states, cross_mask, labels});
}

} // namespace tessera::nn
