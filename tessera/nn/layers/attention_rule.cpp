#include "tessera/nn/layers/attention_rule.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>

namespace tessera::nn {

namespace {

constexpr double kHidden = -std::numeric_limits<double>::infinity();

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
  const Range here = head_groups_here(o, parallel);
  const std::int64_t queries = head_groups(o).queries;
  rule.first_head = here.start * queries;
  rule.all_heads = o.num_attention_heads;
  if (o.use_alibi && !cross) {
    rule.slopes = alibi_slopes(
        o.num_attention_heads, rule.first_head, here.size() * queries, o.alibi_bias_max, device);
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

} // namespace tessera::nn
