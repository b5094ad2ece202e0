#include "tessera/nn/layers/output_layer.h"

#include <ATen/ATen.h>

#include "tessera/nn/layers/attention_layer.h"
#include "tessera/nn/layers/dropout.h"
#include "tessera/nn/layers/placement.h"
#include "tessera/recompute/kept_products.h"

namespace tessera::nn {

at::Tensor activated(const std::string& activation, const at::Tensor& x) {
  if (activation == "relu") {
    return at::relu(x);
  }
  if (activation == "silu") {
    return at::silu(x);
  }
  return at::gelu(x, activation == "gelu_tanh" ? "tanh" : "none");
}

DistributedTransformerOutputLayerImpl::DistributedTransformerOutputLayerImpl(
    const TransformerOptions& given)
    : options(given) {
  check_options("DistributedTransformerOutputLayer", options, parallel());
  const auto& o = options;
  TransformerOptions with_bias = o;
  with_bias.linear_bias = o.linear_bias && o.output_bias;
  const auto dense = [&](DistributedProjectionImpl::Direction direction, std::int64_t groups) {
    return DistributedProjection(
        direction, o.hidden_size, FeatureSplit{groups, o.intermediate_size, 1}, with_bias);
  };
  if (o.pre_layernorm && !o.shared_layernorm) {
    pre_layernorm_ = register_module("pre_layernorm", make_part_norm(o));
  }
  dense1_ = register_module(
      "dense1", dense(DistributedProjectionImpl::Direction::kInto, o.gated_output ? 2 : 1));
  dense2_ = register_module("dense2", dense(DistributedProjectionImpl::Direction::kOutOf, 1));
  if (o.post_layernorm) {
    layernorm_ = register_module("layernorm", make_part_norm(o));
  }
}

at::Tensor DistributedTransformerOutputLayerImpl::inner(
    const at::Tensor& normed,
    const Lengths& samples) {
  const at::Tensor wide = dense1_->forward(normed, samples);
  if (!options.gated_output) {
    return activated(options.activation, wide);
  }
  const auto halves = wide.chunk(2, -1);
  return activated(options.activation, halves.at(0)) * halves.at(1);
}

at::Tensor DistributedTransformerOutputLayerImpl::update(
    const at::Tensor& normed,
    const Lengths& samples) {
  const auto& o = options;
  const TensorParallel parallel = parallel_now();
  const at::Tensor kept = drop(
      parallel,
      inner(normed, samples),
      divided_placement(parallel),
      o.intermediate_dropout_prob,
      is_training(),
      o.intermediate_size);
  const recompute::ReturnedProduct returned;
  return drop(
      parallel,
      dense2_->forward(kept, samples),
      inside_placement(parallel),
      o.hidden_dropout_prob,
      is_training(),
      o.hidden_size);
}

at::Tensor DistributedTransformerOutputLayerImpl::forward_part(
    const at::Tensor& hidden,
    const Lengths& samples) {
  const at::ScalarType dtype = dense2_->weight.scalar_type();
  const at::Tensor x =
      pre_layernorm_.is_empty() ? hidden : pre_layernorm_->forward_to(hidden, dtype);
  const at::Tensor sum = residual_sum(options, hidden, update(x, samples));
  return layernorm_.is_empty() ? sum : layernorm_->forward_to(sum, dtype);
}

at::Tensor DistributedTransformerOutputLayerImpl::forward(const at::Tensor& hidden) {
  const ForwardScope present(*this);
  check_hidden("DistributedTransformerOutputLayer", options, hidden);
  const TensorParallel parallel = parallel_now();
  const Lengths samples = samples_of_ranks(parallel, hidden.size(0));
  return leave(
      parallel,
      forward_part(enter(parallel, hidden, samples), samples).to(hidden.scalar_type()),
      options.hidden_size,
      samples);
}

} // namespace tessera::nn
