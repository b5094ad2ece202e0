#include "tessera/nn/layers/attention_rule.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "tessera/nn/layers/flash_attention.h"
#include "tessera/nn/layers/placement.h"

namespace tessera::nn {

namespace {

constexpr double kHidden = -std::numeric_limits<double>::infinity();

/// [n, S, d] with queries that share a key head one below the other: [m, S n/m, d].
at::Tensor by_key_head(const at::Tensor& t, std::int64_t key_heads) {
  return t.size(0) == key_heads ? t : t.reshape({key_heads, -1, t.size(2)});
}

} // namespace

at::Tensor alibi_slopes(
    std::int64_t heads,
    std::int64_t first,
    std::int64_t count,
    double largest,
    const at::Device& device) {
  const at::Tensor places =
      at::arange(first + 1, first + count + 1, at::dtype(at::kDouble).device(device));
  return at::exp2(places * (-largest / static_cast<double>(heads))).to(at::kFloat);
}

AttentionRule rule_of(
    const TransformerOptions& o,
    const TensorParallel& parallel,
    bool cross,
    bool training,
    at::ScalarType dtype,
    const at::Device& device) {
  AttentionRule rule;
  const auto layer = static_cast<double>(o.layer_idx + 1);
  rule.scale =
      o.scale_attention_scores ? 1 / std::sqrt(static_cast<double>(o.attention_head_size)) : 1;
  if (o.scale_attn_by_layer_idx) {
    rule.scale /= layer;
  }
  rule.causal = o.causal_mask_size.has_value() && !cross;
  rule.window = rule.causal ? window_of_layer(o) : 0;
  rule.dropout = training ? o.attention_dropout_prob : 0;
  rule.in_fp32 = o.attention_in_fp32;
  if (o.query_key_layer_scaling && dtype != at::kBFloat16) {
    rule.product_divisor = layer;
  }
  rule.blockwise = o.flash_attention;
  if (o.use_alibi && !cross) {
    const Range here = head_groups_here(o, parallel);
    const std::int64_t queries = head_groups(o).queries;
    rule.slopes = alibi_slopes(
        o.num_attention_heads,
        here.start * queries,
        here.size() * queries,
        o.alibi_bias_max,
        device);
  }
  return rule;
}

bool hides_all(const AttentionRule& rule, const ScoreBlock& block) {
  if (!rule.causal) {
    return false;
  }
  const std::int64_t last_query = block.diagonal() + block.queries - 1;
  const bool after = last_query < 0;
  const bool before = rule.window > 0 && block.keys - 1 <= block.diagonal() - rule.window;
  return after || before;
}

bool hides_none(const AttentionRule& rule, const ScoreBlock& block) {
  if (!rule.causal) {
    return true;
  }
  const std::int64_t last_query = block.diagonal() + block.queries - 1;
  return block.keys - 1 <= block.diagonal() && (rule.window == 0 || last_query < rule.window);
}

void add_by_place(const AttentionRule& rule, const ScoreBlock& block, at::Tensor& scores) {
  if (rule.slopes.defined()) {
    const auto options = rule.slopes.options();
    const at::Tensor query = at::arange(block.queries, options) + block.diagonal();
    const at::Tensor distance = at::arange(block.keys, options) - query.unsqueeze(1);
    scores.add_((rule.slopes.view({-1, 1, 1}) * distance).to(scores.scalar_type()));
  }
  if (hides_none(rule, block)) {
    return;
  }
  const auto hidden = [&] {
    return at::full({block.queries, block.keys}, kHidden, scores.options());
  };
  scores.add_(hidden().triu_(block.diagonal() + 1));
  if (rule.window > 0) {
    scores.add_(hidden().tril_(block.diagonal() - rule.window));
  }
}

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
    if (mask.defined()) {
      scores.add_(mask);
    }
    add_by_place(rule, {0, queries, 0, keys, keys - queries}, scores);
    scores = scores.view({batch * heads, queries, keys});
  }
  at::Tensor weights = at::softmax(scores, -1).to(v.scalar_type());
  if (rule.dropout > 0) {
    const bool on_mesh = inside_placement(parallel) == Placement::kOnMesh;
    const Placement where = on_mesh ? Placement::kOnMesh : Placement::kSharded;
    weights = drop(parallel, weights, where, rule.dropout, /*training=*/true);
  }
  return joined(at::bmm(by_key_head(weights, batch * key_heads), by_head(v)));
}

} // namespace tessera::nn
