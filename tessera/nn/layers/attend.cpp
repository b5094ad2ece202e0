#include "tessera/nn/layers/attend.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "tessera/nn/layers/dropout.h"
#include "tessera/nn/layers/first_keys.h"
#include "tessera/nn/layers/flash_attention.h"
#include "tessera/recompute/kept_bmm.h"
#include "tessera/recompute/kept_products.h"

namespace tessera::nn {

namespace {

/// [n, S, d] with queries that share a key head one below the other: [m, S n/m, d].
at::Tensor by_key_head(const at::Tensor& t, std::int64_t key_heads) {
  return t.size(0) == key_heads ? t : t.reshape({key_heads, -1, t.size(2)});
}

/// weights_NST of the heads of `batch` samples, with a part of them dropped.
at::Tensor dropped(
    const TensorParallel& parallel,
    const at::Tensor& weights,
    std::int64_t batch,
    const AttentionRule& rule) {
  random::Stream* stream = random::current();
  if (stream == nullptr) {
    const Placement where = divided_placement(parallel);
    return drop(parallel, weights, where, rule.dropout, /*training=*/true, weights.size(-1));
  }
  if (weights.numel() == 0) {
    return weights;
  }
  const random::Place place =
      place_of_attention(*stream, parallel, batch, rule.first_head, rule.all_heads);
  const at::Tensor mask = random::dropout_mask(
      {batch, weights.size(0) / batch, weights.size(1), weights.size(2)},
      weights.options(),
      rule.dropout,
      random::next_use(*stream),
      place);
  return weights * mask.view(weights.sizes());
}

} // namespace

at::Tensor attend_over_heads(
    const TensorParallel& parallel,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& mask,
    const AttentionRule& rule) {
  const std::int64_t batch = q.size(0);
  const std::int64_t queries = q.size(1);
  const std::int64_t keys = k.size(1);
  const std::int64_t heads = q.size(2);
  const std::int64_t key_heads = k.size(2);
  const std::int64_t width = q.size(3);
  const auto joined = [&](const at::Tensor& y) {
    return y.view({batch, heads, queries, width})
        .transpose(1, 2)
        .reshape({batch, queries, heads * width});
  };
  // Heads in front, so that every head is one matrix.
  const auto by_head = [&](const at::Tensor& t) {
    return t.transpose(1, 2).reshape({batch * t.size(2), t.size(1), width});
  };
  if (rule.blockwise) {
    return joined(blockwise_attention(
        parallel, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, rule));
  }
  const double scale = rule.scale / rule.product_divisor;
  at::Tensor q_heads = by_head(q);
  q_heads = by_key_head(scale == 1 ? q_heads : q_heads * scale, batch * key_heads);
  at::Tensor k_heads = by_head(k);
  if (rule.in_fp32) {
    const auto wide = at::toOpMathType(q.scalar_type());
    q_heads = q_heads.to(wide);
    k_heads = k_heads.to(wide);
  }
  at::Tensor scores = at::bmm(q_heads, k_heads.transpose(1, 2));
  if (rule.product_divisor != 1) {
    scores = scores.to(at::toOpMathType(q.scalar_type())) * rule.product_divisor;
  }
  if (mask.defined() || rule.causal || rule.slopes.defined() || heads != key_heads) {
    // The product itself is not used again: the sums may be made in place.
    scores = at::_unsafe_view(scores, {batch, heads, queries, keys});
    const ScoreBlock all{0, queries, 0, keys, keys - queries};
    if (is_first_keys(mask)) {
      hide_before_first_keys(mask, all, scores);
    } else if (mask.defined()) {
      scores.add_(mask);
    }
    add_by_place(rule, all, scores);
    scores = scores.view({batch * heads, queries, keys});
  }
  at::Tensor weights = at::softmax(scores, -1).to(v.scalar_type());
  if (rule.dropout > 0) {
    weights = dropped(parallel, weights, batch, rule);
  }
  const recompute::ReturnedProduct returned;
  return joined(recompute::kept_bmm(by_key_head(weights, batch * key_heads), by_head(v)));
}

} // namespace tessera::nn
