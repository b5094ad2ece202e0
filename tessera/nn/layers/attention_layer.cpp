#include "tessera/nn/layers/attention_layer.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "tessera/base/error.h"
#include "tessera/nn/layers/attend.h"
#include "tessera/nn/layers/dropout.h"
#include "tessera/nn/layers/rotary.h"
#include "tessera/nn/parallel/shard.h"
#include "tessera/recompute/attentions.h"

namespace tessera::nn {

using Direction = DistributedProjectionImpl::Direction;

namespace {

/// Options of a projection that has its bias only when `bias` says so too.
TransformerOptions with_bias(TransformerOptions options, bool bias) {
  options.linear_bias = options.linear_bias && bias;
  return options;
}

} // namespace

DistributedAttentionLayerImpl::DistributedAttentionLayerImpl(const TransformerOptions& given)
    : options(given) {
  check_options("DistributedAttentionLayer", options, parallel());
  const auto& o = options;
  const HeadGroups all = head_groups(o);
  own_groups_ = {head_groups_here(o, parallel()).size(), all.queries};
  const std::int64_t width = o.attention_head_size;
  const auto into = [&](const FeatureSplit& split) {
    return DistributedProjection(
        Direction::kInto, o.hidden_size, split, with_bias(o, o.query_key_value_bias));
  };
  const FeatureSplit queries{1, all.groups, all.queries * width};
  if (o.pre_layernorm) {
    pre_layernorm_ = register_module("pre_layernorm", make_part_norm(o));
  }
  if (o.cross_attention) {
    query_ = register_module("query", into(queries));
    key_value_ = register_module("key_value", into({2, all.groups, width}));
  } else if (o.num_key_value_heads > 0) {
    query_key_value_ =
        register_module("query_key_value", into({1, all.groups, (all.queries + 2) * width}));
  } else {
    query_key_value_ = register_module("query_key_value", into({3, all.groups, width}));
  }
  dense_ = register_module(
      "dense",
      DistributedProjection(
          Direction::kOutOf, o.hidden_size, queries, with_bias(o, o.attention_dense_bias)));
  if (o.post_layernorm) {
    layernorm_ = register_module("layernorm", make_part_norm(o));
  }
}

std::vector<at::Tensor> DistributedAttentionLayerImpl::products(
    const at::Tensor& normed,
    const at::Tensor& cross_states,
    const Lengths& samples) {
  if (options.cross_attention) {
    return {query_->forward(normed, samples), key_value_->forward(cross_states, samples)};
  }
  return {query_key_value_->forward(normed, samples)};
}

std::vector<at::Tensor> DistributedAttentionLayerImpl::query_key_values(
    const std::vector<at::Tensor>& products) const {
  const auto& o = options;
  const std::int64_t width = o.attention_head_size;
  const auto [groups, queries] = own_groups_;
  const auto features = [&](const at::Tensor& t, std::int64_t kinds, std::int64_t heads) {
    return t.view({t.size(0), t.size(1), kinds, heads, width}).unbind(2);
  };
  if (o.cross_attention) {
    std::vector<at::Tensor> qkv = features(products.at(0), 1, own_groups_.heads());
    const auto kv = features(products.at(1), 2, groups);
    qkv.insert(qkv.end(), kv.begin(), kv.end());
    return qkv;
  }
  const at::Tensor& all = products.at(0);
  std::vector<at::Tensor> qkv;
  if (o.num_key_value_heads == 0) {
    qkv = features(all, 3, groups);
  } else {
    const at::Tensor grouped = all.view({all.size(0), all.size(1), groups, queries + 2, width});
    qkv = {
        grouped.narrow(3, 0, queries).reshape({all.size(0), all.size(1), groups * queries, width}),
        grouped.select(3, queries),
        grouped.select(3, queries + 1)};
  }
  if (o.rotary_pct > 0) {
    const Rotary rotary{rotary_width(o), o.rotary_base, o.rotary_interleaved};
    qkv[0] = turned_by_position(rotary, qkv[0]);
    qkv[1] = turned_by_position(rotary, qkv[1]);
  }
  return qkv;
}

at::Tensor DistributedAttentionLayerImpl::attended(
    const TensorParallel& parallel,
    const std::vector<at::Tensor>& products,
    const at::Tensor& mask) {
  const auto& o = options;
  const at::Tensor& first = products.at(0);
  const AttentionRule rule =
      rule_of(o, parallel, o.cross_attention, is_training(), first.scalar_type(), first.device());
  const bool recomputed = o.checkpoint_attentions || recompute::attentions_recomputed();
  if (!recomputed || rule.blockwise || parallel.shapes_only) {
    const std::vector<at::Tensor> qkv = query_key_values(products);
    return attend_over_heads(parallel, qkv[0], qkv[1], qkv[2], mask, rule);
  }
  std::vector<at::Tensor> inputs = products;
  inputs.push_back(mask);
  // The backward may run after the last holder of the layer was destroyed.
  const auto attention =
      [this, self = shared_from_this(), parallel, rule](const std::vector<at::Tensor>& given) {
        const std::vector<at::Tensor> qkv = query_key_values(given);
        return attend_over_heads(parallel, qkv[0], qkv[1], qkv[2], given.back(), rule);
      };
  return recompute::recompute_attention(
      tessera::str(
          o.cross_attention ? "the attention over other states" : "the attention",
          " of layer ",
          o.layer_idx),
      inputs,
      attention);
}

at::Tensor DistributedAttentionLayerImpl::update(
    const at::Tensor& normed,
    const at::Tensor& mask,
    const at::Tensor& cross_states,
    const Lengths& samples) {
  const auto& o = options;
  const TensorParallel parallel = parallel_now();
  const std::vector<at::Tensor> all = products(normed, cross_states, samples);
  const std::int64_t positions = all[0].size(1);
  if (!o.cross_attention && o.causal_mask_size && positions > *o.causal_mask_size) {
    throw ShapeError(tessera::str(
        "DistributedAttentionLayer: a sequence of ",
        positions,
        " is longer than causal_mask_size ",
        *o.causal_mask_size));
  }
  return drop(
      parallel,
      dense_->forward(attended(parallel, all, mask), samples),
      inside_placement(parallel),
      o.hidden_dropout_prob,
      is_training(),
      o.hidden_size);
}

at::Tensor DistributedAttentionLayerImpl::forward_part(
    const at::Tensor& hidden,
    const at::Tensor& mask,
    const at::Tensor& cross_states,
    const Lengths& samples) {
  const at::ScalarType dtype = dense_->weight.scalar_type();
  const at::Tensor x =
      pre_layernorm_.is_empty() ? hidden : pre_layernorm_->forward_to(hidden, dtype);
  const at::Tensor sum = residual_sum(options, hidden, update(x, mask, cross_states, samples));
  return layernorm_.is_empty() ? sum : layernorm_->forward_to(sum, dtype);
}

at::Tensor DistributedAttentionLayerImpl::forward(
    const at::Tensor& hidden,
    const at::Tensor& attention_mask,
    const at::Tensor& cross_states) {
  const ForwardScope present(*this);
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
      parallel, attention_mask, head_groups(options), sizes.own_masks, sizes.samples);
  const at::Tensor y = forward_part(
      enter(parallel, hidden, sizes.samples),
      mask,
      cross_states.defined() ? enter(parallel, cross_states, sizes.samples) : at::Tensor(),
      sizes.samples);
  return leave(parallel, y.to(hidden.scalar_type()), options.hidden_size, sizes.samples);
}

at::Tensor
residual_sum(const TransformerOptions& options, const at::Tensor& x, const at::Tensor& update) {
  if (!options.fp32_residual_addition) {
    return x + update;
  }
  const at::ScalarType wide = at::toOpMathType(x.scalar_type()); // f64 stays f64
  return x.to(wide) + update.to(wide);
}

} // namespace tessera::nn
