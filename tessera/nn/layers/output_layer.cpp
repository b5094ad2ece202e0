#include "tessera/nn/layers/output_layer.h"

#include <ATen/ATen.h>

#include "tessera/nn/layers/attention_layer.h"
#include "tessera/nn/layers/placement.h"

namespace tessera::nn {

at::Tensor activated(const std::string& activation, const at::Tensor& x) {
  if (activation == "relu") {
    return at::relu(x);
  }
  return at::gelu(x, activation == "gelu_tanh" ? "tanh" : "none");
}

DistributedTransformerOutputLayerImpl::DistributedTransformerOutputLayerImpl(
    const TransformerOptions& given)
    : options(given) {
  check_options("DistributedTransformerOutputLayer", options, parallel());
  const auto& o = options;
  const FeatureSplit split{1, o.intermediate_size, 1};
  const auto dense = [&](DistributedProjectionImpl::Direction direction) {
    return DistributedProjection(direction, o.hidden_size, split, o);
  };
  if (o.pre_layernorm) {
    pre_layernorm_ = register_module("pre_layernorm", make_part_norm(o));
  }
  dense1_ = register_module("dense1", dense(DistributedProjectionImpl::Direction::kInto));
  dense2_ = register_module("dense2", dense(DistributedProjectionImpl::Direction::kOutOf));
  if (o.post_layernorm) {
    layernorm_ = register_module("layernorm", make_part_norm(o));
  }
}

at::Tensor DistributedTransformerOutputLayerImpl::forward_part(
    const at::Tensor& hidden,
    const Lengths& samples) {
  const auto& o = options;
  const TensorParallel parallel = parallel_now();
  const at::Tensor x = pre_layernorm_.is_empty() ? hidden : pre_layernorm_->forward(hidden);
  const at::Tensor inner = drop(
      parallel,
      activated(o.activation, dense1_->forward(x, samples)),
      Placement::kSharded,
      o.intermediate_dropout_prob,
      is_training());
  const at::Tensor update = drop(
      parallel,
      dense2_->forward(inner, samples),
      inside_placement(parallel),
      o.hidden_dropout_prob,
      is_training());
  const at::Tensor sum = residual_sum(hidden, update, o.fp32_residual_addition);
  return layernorm_.is_empty() ? sum : layernorm_->forward(sum);
}

at::Tensor DistributedTransformerOutputLayerImpl::forward(const at::Tensor& hidden) {
  check_hidden("DistributedTransformerOutputLayer", options, hidden);
  const TensorParallel parallel = parallel_now();
  const Lengths samples = samples_of_ranks(parallel, hidden.size(0));
  return leave(
      parallel,
      forward_part(enter(parallel, hidden, samples), samples),
      options.hidden_size,
      samples);
}

} // namespace tessera::nn
