#include "tessera/nn/layers/attend.h"

#include <utility>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "tessera/nn/layers/dropout.h"
#include "tessera/nn/layers/first_keys.h"
#include "tessera/nn/layers/flash_attention.h"
#include "tessera/nn/parallel/random_streams.h"
#include "tessera/recompute/kept_attention.h"
#include "tessera/recompute/kept_bmm.h"
#include "tessera/recompute/kept_dropout.h"
#include "tessera/recompute/kept_products.h"

namespace tessera::nn {

namespace {

/// [n, S, d] with queries that share a key head one below the other: [m, S n/m, d].
at::Tensor by_key_head(const at::Tensor& t, std::int64_t key_heads) {
  return t.size(0) == key_heads ? t : t.reshape({key_heads, -1, t.size(2)});
}

/// The mask of weights_NST of the heads of `batch` samples. Threads: with the stream of this one.
recompute::MaskSource mask_of_weights(
    const TensorParallel& parallel,
    const at::Tensor& like,
    std::int64_t batch,
    const AttentionRule& rule) {
  random::Stream* stream = random::current();
  if (stream == nullptr) {
    return {sharded_mask(parallel, like, rule.dropout)};
  }
  if (like.numel() == 0) {
    return {[like] { return like; }}; // no number is drawn
  }
  const auto draw = [&parallel, &rule, like, batch, stream] {
    const random::Place place =
        place_of_attention(*stream, parallel, batch, rule.first_head, rule.all_heads);
    const at::Tensor mask = random::dropout_mask(
        {batch, like.size(0) / batch, like.size(1), like.size(2)},
        like.options(),
        rule.dropout,
        random::next_use(*stream),
        place);
    return mask.view(like.sizes());
  };
  return {draw, [stream] { random::next_use(*stream); }};
}

/// Adds to scores_BHST what the layer's mask and its rule say.
void add_to_scores(const at::Tensor& mask, const AttentionRule& rule, at::Tensor& scores) {
  const ScoreBlock all{0, scores.size(2), 0, scores.size(3), scores.size(3) - scores.size(2)};
  if (is_first_keys(mask)) {
    hide_before_first_keys(mask, all, scores);
  } else if (mask.defined()) {
    scores.add_(mask);
  }
  add_by_place(rule, all, scores);
}

/// The context of a region that keeps products. Shapes as attend_by_heads().
at::Tensor attend_some_heads_at_a_time(
    const TensorParallel& parallel,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& mask,
    const AttentionRule& rule,
    std::int64_t batch,
    std::int64_t heads) {
  recompute::HeadRule by_heads{batch, heads, {}, {}};
  by_heads.add = [mask, rule](const recompute::HeadBlock& block, at::Tensor& scores) {
    AttentionRule here = rule;
    if (rule.slopes.defined()) {
      here.slopes = rule.slopes.narrow(0, block.head, block.heads);
    }
    add_to_scores(mask.defined() ? block.of(mask) : mask, here, scores);
  };
  if (rule.dropout > 0) {
    const std::int64_t shared = heads * batch / q.size(0); // heads that share one of keys
    const at::Tensor like =
        at::empty({batch * heads, q.size(1) / shared, k.size(1)}, v.options()); // not touched
    by_heads.mask = mask_of_weights(parallel, like, batch, rule);
  }
  return recompute::attend_by_heads(q, k, v, std::move(by_heads));
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
  const at::Tensor v_heads = by_head(v);
  if (rule.product_divisor == 1 && recompute::attends_by_heads(q_heads, k_heads, v_heads, mask)) {
    const recompute::ReturnedProduct returned;
    return joined(
        attend_some_heads_at_a_time(parallel, q_heads, k_heads, v_heads, mask, rule, batch, heads));
  }
  at::Tensor scores = at::bmm(q_heads, k_heads.transpose(1, 2));
  if (rule.product_divisor != 1) {
    scores = scores.to(at::toOpMathType(q.scalar_type())) * rule.product_divisor;
  }
  if (mask.defined() || rule.causal || rule.slopes.defined() || heads != key_heads) {
    // The product itself is not used again: the sums may be made in place.
    scores = at::_unsafe_view(scores, {batch, heads, queries, keys});
    add_to_scores(mask, rule, scores);
    scores = scores.view({batch * heads, queries, keys});
  }
  at::Tensor weights = at::softmax(scores, -1).to(v.scalar_type());
  if (rule.dropout > 0) {
    weights = recompute::kept_dropout(weights, mask_of_weights(parallel, weights, batch, rule));
  }
  const recompute::ReturnedProduct returned;
  return joined(recompute::kept_bmm(by_key_head(weights, batch * key_heads), v_heads));
}

} // namespace tessera::nn
