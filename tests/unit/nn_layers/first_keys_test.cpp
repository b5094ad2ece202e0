// First keys beside the same mask as a matrix that is added to the scores.
#include "tessera/nn/layers/first_keys.h"

#include <memory>

#include "tessera/nn/layers/attend.h"
#include "tessera/nn/layers/lm_head.h"

#include "layer_comparison.h"
#include "tests/support/live_bytes.h"

namespace tessera::testing {
namespace {

/// Documents of uneven lengths, other ones in each sample, some longer than a block.
torch::Tensor begins_for(std::int64_t samples, std::int64_t positions, std::int64_t step) {
  auto begins = torch::zeros({samples, positions}, torch::kLong);
  for (std::int64_t b = 0; b < samples; ++b) {
    std::int64_t begin = 0;
    for (std::int64_t s = 0; s < positions; ++s) {
      if (s > begin + (b + s % 3) * step) {
        begin = s;
      }
      begins[b][s] = begin;
    }
  }
  return begins;
}

/// 0 where a key is of the query's document, -inf elsewhere before it: BSS, as a loop.
torch::Tensor as_matrix(const torch::Tensor& mask) {
  const auto first = mask.accessor<std::int64_t, 4>();
  const std::int64_t positions = mask.size(2);
  auto matrix = torch::zeros({mask.size(0), 1, positions, positions});
  auto to = matrix.accessor<float, 4>();
  for (std::int64_t b = 0; b < mask.size(0); ++b) {
    for (std::int64_t s = 0; s < positions; ++s) {
      for (std::int64_t t = 0; t < first[b][0][s][0]; ++t) {
        to[b][0][s][t] = -INFINITY;
      }
    }
  }
  return matrix;
}

struct DocumentAttention {
  torch::Tensor y;
  std::vector<torch::Tensor> gradients;
};

DocumentAttention
attended(const nn::AttentionRule& rule, const torch::Tensor& mask, std::int64_t positions) {
  auto q = fixed_random({2, positions, 4, 8}, 1).requires_grad_();
  auto k = fixed_random({2, positions, 2, 8}, 2).requires_grad_();
  auto v = fixed_random({2, positions, 2, 8}, 3).requires_grad_();
  const auto y = nn::attend_over_heads({}, q, k, v, mask, rule);
  (y * fixed_random(y.sizes().vec(), 5)).sum().backward();
  return {y.detach(), {q.grad(), k.grad(), v.grad()}};
}

TEST(FirstKeys, EqualAMatrixAtOnceAndInBlocks) {
  constexpr std::int64_t kLong = 600; // several blocks, the last one not full
  for (const std::int64_t step : {1, 40, 150}) {
    const auto mask = nn::first_keys(begins_for(2, kLong, step));
    for (const bool blockwise : {false, true}) {
      for (const std::int64_t window : {0, 30}) {
        nn::AttentionRule rule;
        rule.scale = 0.35;
        rule.causal = true;
        rule.window = window;
        const auto expected = attended(rule, as_matrix(mask), kLong);
        rule.blockwise = blockwise;
        const auto found = attended(rule, mask, kLong);
        expect_close(found.y, expected.y, "output");
        for (std::size_t i = 0; i < 3; ++i) {
          expect_close(
              found.gradients[i], expected.gradients[i], "gradient " + std::to_string(i), 3e-5);
        }
      }
    }
  }
}

TEST(FirstKeys, InBlocksNoMatrixIsMade) {
  constexpr std::int64_t kLong = 2048;
  constexpr std::int64_t kMatrix = kLong * kLong; // of bytes; the scores are four times as large
  nn::AttentionRule rule;
  rule.causal = true;
  rule.blockwise = true;
  const auto q = fixed_random({1, kLong, 1, 4}, 1).requires_grad_();
  const auto mask = nn::first_keys(begins_for(1, kLong, 300));
  const auto live = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
  nn::attend_over_heads({}, q, q, q, mask, rule).sum().backward();
  EXPECT_LT(live->highest, kMatrix);
}

TEST(FirstKeys, AreToldFromOtherMasks) {
  EXPECT_TRUE(nn::is_first_keys(nn::first_keys(begins_for(2, 4, 1))));
  EXPECT_FALSE(nn::is_first_keys(torch::Tensor()));
  EXPECT_FALSE(nn::is_first_keys(torch::zeros({2, 4}, torch::kLong))); // 1 where masked
  EXPECT_FALSE(nn::is_first_keys(torch::zeros({2, 1, 4, 1})));
  EXPECT_FALSE(nn::is_first_keys(torch::zeros({2, 1, 4, 4}, torch::kLong)));
}

class FirstKeysOfLayers : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(
    Settings,
    FirstKeysOfLayers,
    ::testing::ValuesIn(all_settings()),
    [](const auto& info) { return info.param.name(); });

TEST_P(FirstKeysOfLayers, EqualAMatrixOnEveryRank) {
  for (const bool flash : {false, true}) {
    for (const bool checkpointed : {false, true}) {
      TransformerOptions o = small_options();
      o.causal_mask_size = 6;
      o.pre_layernorm = true;
      o.post_layernorm = false;
      auto plain = seeded(21, [&] { return PlainLayer(o); });
      Whole whole = whole_inputs(GetParam().tp, o, Mask::kNone);
      whole.inputs.mask = nn::first_keys(begins_for(whole.inputs.hidden.size(0), kPositions, 1));
      compare(
          GetParam(),
          whole,
          *plain,
          [&](const Inputs& in) {
            return plain(in.hidden, as_matrix(in.mask), in.states, in.cross_mask);
          },
          [&]() -> Distributed {
            TransformerOptions of_layer = o;
            of_layer.flash_attention = flash;
            of_layer.checkpoint_attentions = checkpointed;
            nn::DistributedTransformerLayer layer(of_layer);
            return {layer.ptr(), [layer](const Inputs& in) {
                      return std::get<0>(layer(in.hidden, in.mask, in.states, in.cross_mask));
                    }};
          });
    }
  }
}

} // namespace
} // namespace tessera::testing
