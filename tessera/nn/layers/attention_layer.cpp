#include "tessera/nn/layers/attention_layer.h"

#include <cmath>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/parallel/shard.h"

namespace tessera::nn {

using Direction = DistributedProjectionImpl::Direction;

DistributedAttentionLayerImpl::DistributedAttentionLayerImpl(const TransformerOptions& given)
    : options(given) {
  check_options("DistributedAttentionLayer", options, parallel());
  const auto& o = options;
  own_heads_ = heads_here(o, parallel());
  const auto split = [&](std::int64_t groups) {
    return FeatureSplit{groups, o.num_attention_heads, o.attention_head_size};
  };
  const auto into = [&](std::int64_t groups) {
    return DistributedProjection(Direction::kInto, o.hidden_size, split(groups), o);
  };
  if (o.pre_layernorm) {
    pre_layernorm_ = register_module("pre_layernorm", make_part_norm(o));
  }
  if (o.cross_attention) {
    query_ = register_module("query", into(1));
    key_value_ = register_module("key_value", into(2));
  } else {
    query_key_value_ = register_module("query_key_value", into(3));
  }
  dense_ = register_module(
      "dense", DistributedProjection(Direction::kOutOf, o.hidden_size, split(1), o));
  if (o.post_layernorm) {
    layernorm_ = register_module("layernorm", make_part_norm(o));
  }
}

at::Tensor DistributedAttentionLayerImpl::forward_part(
    const at::Tensor& hidden,
    const at::Tensor& mask,
    const at::Tensor& cross_states,
    const Lengths& samples) {
  const auto& o = options;
  const TensorParallel parallel = parallel_now();
  const std::int64_t width = o.attention_head_size;
  const auto features = [&](const at::Tensor& t, std::int64_t groups) {
    return t.view({t.size(0), t.size(1), groups, own_heads_, width}).unbind(2);
  };
  const at::Tensor x = pre_layernorm_.is_empty() ? hidden : pre_layernorm_->forward(hidden);
  std::vector<at::Tensor> qkv;
  if (o.cross_attention) {
    qkv = features(query_->forward(x, samples), 1);
    const auto kv = features(key_value_->forward(cross_states, samples), 2);
    qkv.insert(qkv.end(), kv.begin(), kv.end());
  } else {
    qkv = features(query_key_value_->forward(x, samples), 3);
    const std::int64_t positions = qkv[0].size(1);
    if (o.causal_mask_size && positions > *o.causal_mask_size) {
      throw ShapeError(tessera::str(
          "DistributedAttentionLayer: a sequence of ",
          positions,
          " is longer than causal_mask_size ",
          *o.causal_mask_size));
    }
  }
  const at::Tensor joined = attend_over_heads(
      parallel,
      qkv[0],
      qkv[1],
      qkv[2],
      mask,
      o.causal_mask_size.has_value() && !o.cross_attention,
      o.scale_attention_scores ? 1 / std::sqrt(static_cast<double>(width)) : 1,
      is_training() ? o.attention_dropout_prob : 0);
  const at::Tensor update = drop(
      parallel,
      dense_->forward(joined, samples),
      inside_placement(parallel),
      o.hidden_dropout_prob,
      is_training());
  const at::Tensor sum = residual_sum(hidden, update, o.fp32_residual_addition);
  return layernorm_.is_empty() ? sum : layernorm_->forward(sum);
}

at::Tensor DistributedAttentionLayerImpl::forward(
    const at::Tensor& hidden,
    const at::Tensor& attention_mask,
    const at::Tensor& cross_states) {
  const TensorParallel parallel = parallel_now();
  if (options.cross_attention != cross_states.defined()) {
    throw ShapeError(
        options.cross_attention ? "DistributedAttentionLayer: cross_attention is true but there "
                                  "are no cross_states"
                                : "DistributedAttentionLayer: cross_states are given but "
                                  "cross_attention is false");
  }
  check_hidden("DistributedAttentionLayer", options, hidden);
  const SampleSizes sizes = sample_sizes(parallel, hidden, attention_mask, {});
  const at::Tensor mask = mask_for_heads(
      parallel, attention_mask, options.num_attention_heads, sizes.own_masks, sizes.samples);
  const at::Tensor y = forward_part(
      enter(parallel, hidden, sizes.samples),
      mask,
      cross_states.defined() ? enter(parallel, cross_states, sizes.samples) : at::Tensor(),
      sizes.samples);
  return leave(parallel, y, options.hidden_size, sizes.samples);
}

at::Tensor residual_sum(const at::Tensor& x, const at::Tensor& update, bool in_f32) {
  return in_f32 ? (x.to(at::kFloat) + update.to(at::kFloat)).to(x.scalar_type()) : x + update;
}

} // namespace tessera::nn
