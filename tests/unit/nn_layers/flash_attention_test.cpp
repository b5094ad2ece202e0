// Attention in blocks beside the ordinary one, and what an attention's rule says.
#include <cmath>
#include <memory>
#include <vector>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/nn/layers/attend.h"
#include "tessera/nn/layers/flash_attention_layer.h"

#include "ranks.h"
#include "tests/support/live_bytes.h"

namespace tessera::testing {
namespace {

using nn::AttentionRule;

struct Attended {
  torch::Tensor y;
  std::vector<torch::Tensor> gradients; // of q, k, v and, if it wants one, the mask
};

struct Case {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t heads = 4;
  std::int64_t key_heads = 4;
  AttentionRule rule;
  std::vector<std::int64_t> mask; // sizes; none: no mask
};

Attended attended(const Case& of, bool blockwise) {
  constexpr std::int64_t kBatch = 2;
  constexpr std::int64_t kWidth = 8;
  auto q = fixed_random({kBatch, of.queries, of.heads, kWidth}, 1).requires_grad_();
  auto k = fixed_random({kBatch, of.keys, of.key_heads, kWidth}, 2).requires_grad_();
  auto v = fixed_random({kBatch, of.keys, of.key_heads, kWidth}, 3).requires_grad_();
  std::vector<torch::Tensor> leaves{q, k, v};
  torch::Tensor mask;
  if (!of.mask.empty()) {
    mask = fixed_random(of.mask, 4).requires_grad_();
    leaves.push_back(mask);
  }
  AttentionRule rule = of.rule;
  rule.blockwise = blockwise;
  const auto y = nn::attend_over_heads({}, q, k, v, mask, rule);
  (y * fixed_random(y.sizes().vec(), 5)).sum().backward();
  Attended result{y.detach(), {}};
  for (const auto& leaf : leaves) {
    result.gradients.push_back(leaf.grad());
  }
  return result;
}

// Several blocks each way, with a last one that is not full.
TEST(FlashAttention, EqualsTheOrdinaryOneAcrossBlocks) {
  AttentionRule plain;
  plain.scale = 0.35;
  AttentionRule causal = plain;
  causal.causal = true;
  AttentionRule window = causal;
  window.window = 300;
  AttentionRule narrow = causal;
  narrow.window = 3;
  AttentionRule alibi = causal;
  alibi.slopes = nn::alibi_slopes(4, 0, 4, 8, torch::kCPU);
  AttentionRule divided = causal;
  divided.product_divisor = 7;
  divided.in_fp32 = true;
  const std::vector<Case> cases{
      {600, 600, 4, 4, plain, {}},
      {600, 600, 4, 4, causal, {}},
      {600, 600, 4, 2, window, {2, 1, 1, 600}},
      {530, 530, 4, 1, narrow, {}},
      {300, 300, 4, 2, alibi, {1, 4, 300, 300}},
      {270, 600, 4, 4, causal, {2, 4, 270, 600}}, // the last query at the last key
      {3, 280, 4, 2, plain, {1, 1, 3, 280}},
      {300, 300, 4, 4, divided, {2, 1, 1, 300}}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto expected = attended(cases[i], false);
    const auto found = attended(cases[i], true);
    const auto name = "case " + std::to_string(i);
    expect_close(found.y, expected.y, name);
    ASSERT_EQ(found.gradients.size(), expected.gradients.size());
    for (std::size_t g = 0; g < found.gradients.size(); ++g) {
      expect_close(
          found.gradients[g],
          expected.gradients[g],
          name + ", gradient " + std::to_string(g),
          3e-5);
    }
  }
}

TEST(FlashAttention, LargeScoresDoNotOverflow) {
  Case large{300, 300, 4, 4, {}, {}};
  large.rule.scale = 400;
  large.rule.causal = true;
  const auto found = attended(large, true);
  EXPECT_TRUE(found.y.isfinite().all().item<bool>());
  expect_close(found.y, attended(large, false).y, "output", 1e-4);
}

TEST(FlashAttention, NoMatrixOfScoresIsKeptOrMade) {
  constexpr std::int64_t kLong = 2048;
  constexpr std::int64_t kMatrix = kLong * kLong * 4;
  for (const bool blockwise : {false, true}) {
    AttentionRule rule;
    rule.causal = true;
    rule.blockwise = blockwise;
    const auto q = fixed_random({1, kLong, 1, 4}, 1).requires_grad_();
    const auto live = std::make_shared<LiveBytes>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
    const auto y = nn::attend_over_heads({}, q, q, q, {}, rule);
    if (blockwise) {
      EXPECT_LT(live->bytes, kMatrix / 16);
      y.sum().backward();
      EXPECT_LT(live->highest, kMatrix / 4);
    } else {
      EXPECT_GE(live->bytes, kMatrix);
    }
  }
}

// With the unit matrix for values the result is the weights themselves, and the
// mask of the dropout can be read off it.
TEST(FlashAttention, DropoutKeepsItsMaskForTheBackward) {
  constexpr std::int64_t kLong = 300;
  const double p = 0.25;
  AttentionRule rule;
  rule.causal = true;
  rule.blockwise = true;
  const auto make = [&](std::uint64_t seed) {
    return fixed_random({1, kLong, 1, kLong}, seed).mul_(0.05).requires_grad_();
  };
  const auto q = make(1);
  const auto k = make(2);
  const auto v = torch::eye(kLong).view({1, kLong, 1, kLong}).clone().requires_grad_();
  const auto weights = nn::attend_over_heads({}, q, k, v, {}, rule).detach();
  rule.dropout = p;
  const auto run = [&](std::uint64_t seed) {
    return seeded(seed, [&] { return nn::attend_over_heads({}, q, k, v, {}, rule); });
  };
  const auto y = run(7);
  EXPECT_TRUE(torch::equal(y, run(7)));
  EXPECT_FALSE(torch::equal(y, run(8)));
  const auto seen = torch::ones({kLong, kLong}).tril();
  const auto mask = (y.detach()[0] / weights[0].clamp_min(1e-30)) * seen;
  const auto kept = mask.gt(0.5).to(torch::kFloat);
  expect_close(mask, kept / (1 - p), "mask", 1e-4);
  EXPECT_NEAR(kept.sum().item<double>() / seen.sum().item<double>(), 1 - p, 0.02);
  // Blocks have masks of their own.
  EXPECT_FALSE(torch::equal(
      kept.narrow(0, 256, 44).narrow(1, 0, 40), kept.narrow(0, 256, 44).narrow(1, 256, 40)));

  const auto g = fixed_random({1, kLong, kLong}, 9);
  y.backward(g);
  const auto plain_q = q.detach().clone().requires_grad_();
  const auto plain_k = k.detach().clone().requires_grad_();
  const auto plain_v = v.detach().clone().requires_grad_();
  const auto scores = torch::matmul(plain_q[0].squeeze(1), plain_k[0].squeeze(1).t())
                          .masked_fill(seen.eq(0), -INFINITY);
  const auto plain =
      torch::matmul(torch::softmax(scores, -1) * (kept / (1 - p)), plain_v[0].squeeze(1));
  plain.backward(g[0]);
  expect_close(q.grad(), plain_q.grad(), "gradient of queries", 1e-4);
  expect_close(k.grad(), plain_k.grad(), "gradient of keys", 1e-4);
  expect_close(v.grad(), plain_v.grad(), "gradient of values", 1e-4);
}

torch::Tensor plain_attention(const torch::Tensor& qkv, double scale, const torch::Tensor& bias) {
  const auto part = [&](int i) { return qkv.select(2, i).transpose(1, 2); };
  const auto scores = torch::matmul(part(0), part(1).transpose(2, 3)) * scale + bias;
  return torch::matmul(torch::softmax(scores, -1), part(2));
}

TEST(FlashAttentionLayer, ComputesAttentionUnderTheVendorsOptions) {
  const auto qkv = fixed_random({2, 5, 3, 4, 8}, 1);
  const auto none = torch::zeros({1});
  const auto causal = torch::full({5, 5}, -INFINITY).triu(1);
  const auto run = [&](nn::FlashAttentionOptions options,
                       const torch::Tensor& mask = {},
                       bool is_causal = false) {
    options.attention_dropout_prob = 0;
    return nn::FlashAttentionLayer(options)->forward(qkv, mask, is_causal);
  };
  const double by_width = 1 / std::sqrt(8.0);
  expect_close(run({}), plain_attention(qkv, by_width, none), "default");
  expect_close(run({}, {}, true), plain_attention(qkv, by_width, causal), "causal");
  expect_close(run({.scale_attention_scores = false}), plain_attention(qkv, 1, none), "unscaled");
  expect_close(
      run({.scale_attn_by_layer_idx = true, .layer_idx = 3}),
      plain_attention(qkv, by_width / 4, none),
      "by layer");
  expect_close(
      run({.scale_attention_scores = false, .scale = 0.3}),
      plain_attention(qkv, 0.3, none),
      "scale");
  const auto distance = (torch::arange(5) - torch::arange(5).unsqueeze(1)).to(torch::kFloat);
  const auto slopes = torch::tensor({0.25, 0.0625, 0.015625, 0.00390625}).view({4, 1, 1});
  expect_close(
      run({.use_alibi = true}, {}, true),
      plain_attention(qkv, by_width, slopes * distance + causal),
      "alibi");
  const auto mask = fixed_random({2, 1, 1, 5}, 2);
  expect_close(run({}, mask), plain_attention(qkv, by_width, mask), "mask");
  expect_close(
      run({.use_alibi = true}, mask), plain_attention(qkv, by_width, mask), "alibi in the mask");
}

TEST(FlashAttentionLayer, DropsOutWhileItTrainsOnly) {
  const auto qkv = fixed_random({2, 5, 3, 4, 8}, 1);
  nn::FlashAttentionLayer layer(nn::FlashAttentionOptions{.attention_dropout_prob = 0.5});
  const auto first = layer->forward(qkv, {}, false);
  EXPECT_FALSE(torch::equal(first, layer->forward(qkv, {}, false)));
  layer->eval();
  expect_close(
      layer->forward(qkv, {}, false),
      plain_attention(qkv, 1 / std::sqrt(8.0), torch::zeros({1})),
      "evaluation");
}

TEST(FlashAttentionLayer, RefusesWhatItsOptionsExclude) {
  using Options = nn::FlashAttentionOptions;
  EXPECT_THROW(nn::FlashAttentionLayer(Options{.attention_dropout_prob = 1}), ConfigError);
  EXPECT_THROW(nn::FlashAttentionLayer(Options{.scale_attn_by_layer_idx = true}), ConfigError);
  EXPECT_THROW(nn::FlashAttentionLayer(Options{.triton_flash_attention = true}), ConfigError);
  nn::FlashAttentionLayer half(
      Options{.attention_dropout_prob = 0, .triton_flash_attention = true});
  EXPECT_THROW(half->forward(torch::zeros({1, 2, 3, 1, 8}), {}, false), ShapeError);
  EXPECT_EQ(
      half->forward(torch::zeros({1, 2, 3, 1, 8}, torch::kBFloat16), {}, false).scalar_type(),
      torch::kBFloat16);
  nn::FlashAttentionLayer narrow(Options{.attention_head_size = 16});
  EXPECT_THROW(narrow->forward(torch::zeros({1, 2, 3, 1, 8}), {}, false), ShapeError);
  EXPECT_THROW(narrow->forward(torch::zeros({1, 2, 16}), {}, false), ShapeError);
}

TEST(AttentionRules, AttentionInF32RoundsScoresNowhere) {
  // With the unit matrix for values the result is the weights.
  const auto q = fixed_random({1, 8, 2, 8}, 1).to(torch::kBFloat16);
  const auto k = fixed_random({1, 8, 2, 8}, 2).to(torch::kBFloat16);
  const auto v = torch::eye(8).view({1, 8, 1, 8}).expand({1, 8, 2, 8}).to(torch::kBFloat16);
  const auto by_head = [](const torch::Tensor& t) { return t.transpose(1, 2).to(torch::kFloat); };
  const auto exact = torch::softmax(torch::matmul(by_head(q), by_head(k).transpose(2, 3)), -1)
                         .transpose(1, 2)
                         .flatten(2)
                         .to(torch::kBFloat16);
  AttentionRule rule;
  EXPECT_FALSE(torch::equal(nn::attend_over_heads({}, q, k, v, {}, rule), exact));
  rule.in_fp32 = true;
  EXPECT_TRUE(torch::equal(nn::attend_over_heads({}, q, k, v, {}, rule), exact));
  rule.blockwise = true;
  expect_close(nn::attend_over_heads({}, q, k, v, {}, rule), exact, "in blocks", 0.01);
}

TEST(AttentionRules, FollowFromTheOptions) {
  nn::TransformerOptions o;
  o.attention_head_size = 16;
  o.num_attention_heads = 4;
  o.layer_idx = 2;
  const auto rule = [&](at::ScalarType dtype = at::kFloat, bool training = true) {
    return nn::rule_of(o, {}, /*cross=*/false, training, dtype, at::kCPU);
  };
  EXPECT_EQ(rule().scale, 0.25);
  EXPECT_EQ(rule().dropout, 0.1);
  EXPECT_EQ(rule(at::kFloat, false).dropout, 0);
  EXPECT_EQ(rule().product_divisor, 1);
  o.query_key_layer_scaling = true;
  EXPECT_EQ(rule().product_divisor, 3);
  EXPECT_EQ(rule(at::kHalf).product_divisor, 3);
  EXPECT_EQ(rule(at::kBFloat16).product_divisor, 1);
  o.scale_attn_by_layer_idx = true;
  EXPECT_EQ(rule().scale, 0.25 / 3);
  o.use_alibi = true;
  expect_close(rule().slopes, torch::tensor({0.25, 0.0625, 0.015625, 0.00390625}), "slopes");
  EXPECT_FALSE(nn::rule_of(o, {}, /*cross=*/true, true, at::kFloat, at::kCPU).slopes.defined());
}

} // namespace
} // namespace tessera::testing
