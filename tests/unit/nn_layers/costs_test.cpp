// What a transformer layer sends and what it keeps, against closed formulas
// (docs/algorithms.md), and its random streams.
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "tessera/nn/layers/transformer_layer.h"

#include "plain_transformer.h"
#include "ranks.h"
#include "tests/support/live_bytes.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kSamples = 2; // of each rank
constexpr std::int64_t kLength = 8;

TransformerOptions layer_options() {
  TransformerOptions o;
  o.num_attention_heads = 4;
  o.attention_head_size = 8;
  o.hidden_size = 24; // other than heads * head size
  o.intermediate_size = 64;
  o.attention_dropout_prob = 0;
  o.hidden_dropout_prob = 0;
  return o;
}

class LayerCosts : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(
    Settings,
    LayerCosts,
    ::testing::ValuesIn(all_settings()),
    [](const auto& info) { return info.param.name(); });

struct Bytes {
  std::int64_t forward = 0;
  std::int64_t backward = 0;
};

/// The table of docs/algorithms.md for one rank.
Bytes expected_bytes(const Setting& setting, const TransformerOptions& o) {
  const std::int64_t n = setting.tp;
  if (n == 1) {
    return {};
  }
  const std::int64_t rows = kSamples * n * kLength; // of all ranks
  const std::int64_t hidden = rows * o.hidden_size * 4;
  const std::int64_t features =
      rows * 4 *
      (3 * o.num_attention_heads * o.attention_head_size + o.intermediate_size + 2 * o.hidden_size);
  const std::int64_t numbers = (n - 1) * 3 * 8; // batch sizes, masks
  if (setting.distribution == nn::Distribution::kSpeed) {
    const std::int64_t four = 4 * (n - 1) * hidden / n;
    return {four + (setting.prescaled ? 0 : numbers), four};
  }
  const std::int64_t products = (n - 1) * features / n;
  const std::int64_t norms = 2; // after each sub-layer
  const std::int64_t moments = 2 * (n - 1) * (rows * 2) / n * norms;
  const std::int64_t gathered = (n - 1) * hidden / n;
  const std::int64_t exchanged = (n - 1) * hidden / (n * n);
  Bytes bytes{products + moments * 8, products + moments * 4};
  if (setting.prescaled) {
    bytes.forward += gathered; // results
    bytes.backward += gathered; // gradient of the input
  } else {
    bytes.forward += 2 * exchanged + numbers;
    bytes.backward += 2 * exchanged;
  }
  return bytes;
}

TEST_P(LayerCosts, BytesFollowTheFormulas) {
  const Setting setting = GetParam();
  const auto options = layer_options();
  on_ranks(setting, [&](const nn::TensorParallel& parallel) {
    nn::DistributedTransformerLayer layer(options);
    const std::int64_t own = setting.prescaled ? kSamples * setting.tp : kSamples;
    auto x = torch::ones({own, kLength, options.hidden_size}).requires_grad_();
    const Bytes expected = expected_bytes(setting, options);
    auto& bytes = parallel.group->traffic().bytes;
    std::int64_t before = bytes;
    const auto y = layer->hidden_states(x);
    EXPECT_EQ(bytes - before, expected.forward);
    before = bytes;
    y.sum().backward();
    EXPECT_EQ(bytes - before, expected.backward);
  });
}

/// Bytes that a forward leaves behind for its backward, the result excluded.
template <typename Forward>
std::int64_t kept_bytes(const Forward& forward) {
  const auto live = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
  const torch::Tensor y = forward();
  return live->bytes - y.numel() * 4;
}

TEST(LayerMemory, ActivationsUnderMemoryAreOneShare) {
  auto options = layer_options();
  options.hidden_size = 64;
  options.attention_head_size = 16;
  options.intermediate_size = 256;
  options.attention_dropout_prob = 0.1;
  options.hidden_dropout_prob = 0.1;
  const std::int64_t batch = 8;
  const auto x = fixed_random({batch, 32, 64}, 3);
  std::map<std::string, std::int64_t> kept;
  for (const bool prescaled : {false, true}) {
    for (const auto distribution : {nn::Distribution::kMemory, nn::Distribution::kSpeed}) {
      for (const int tp : {1, 2, 4}) {
        const Setting setting{tp, distribution, prescaled};
        on_ranks(setting, [&](const nn::TensorParallel& parallel) {
          nn::DistributedTransformerLayer layer(options);
          const auto own = own_part(parallel, x, std::vector<std::int64_t>(tp, batch / tp));
          const auto input = own.clone().requires_grad_();
          std::int64_t bytes = kept_bytes([&] { return layer->hidden_states(input); });
          if (tp == 1 || distribution == nn::Distribution::kSpeed) {
            bytes += input.numel() * 4; // kept as it came, not made here
          }
          if (parallel.rank() == 0) {
            kept[setting.name()] = bytes;
          }
        });
      }
    }
  }
  const double one = static_cast<double>(kept["memory_tp1"]);
  for (const int tp : {2, 4}) {
    for (const char* suffix : {"", "_prescaled"}) {
      const std::string memory = "memory_tp" + std::to_string(tp) + suffix;
      const double share = kept[memory] * tp / one;
      // Two moments a row and norm are whole on every rank.
      EXPECT_GE(share, 0.9) << memory;
      EXPECT_LE(share, 1.06) << memory;
    }
    // Under speed what lies between the products is whole, or of own samples
    // and whole in front of the products.
    const std::string speed = "speed_tp" + std::to_string(tp);
    EXPECT_GT(kept[speed + "_prescaled"] * tp / one, 1.2) << speed;
    EXPECT_LT(kept[speed], kept[speed + "_prescaled"]);
  }
}

TEST_P(LayerCosts, RanksThatHoldTheSameDropTheSame) {
  const Setting setting = GetParam();
  auto options = layer_options();
  options.attention_dropout_prob = 0.2;
  options.hidden_dropout_prob = 0.3;
  on_ranks(setting, [&](const nn::TensorParallel& parallel) {
    auto layer = seeded(2, [&] { return nn::DistributedTransformerLayer(options); });
    // Threads share one default generator, so ranks draw unlike numbers here.
    const auto x = fixed_random({4, kLength, options.hidden_size}, 5);
    if (parallel.group != nullptr) {
      // Dropout draws without the lock of `seeded`.
      parallel.group->barrier();
    }
    const auto y = layer->hidden_states(x);
    layer->eval();
    const auto without = layer->hidden_states(x);
    EXPECT_FALSE(torch::allclose(y, without));
    layer->train();
    if (!setting.prescaled || parallel.size() == 1) {
      return;
    }
    y.sum().backward();
    const auto equal_everywhere = [&](const torch::Tensor& mine) {
      auto first = mine.detach().clone();
      parallel.group->broadcast(first, 0);
      EXPECT_TRUE(torch::equal(first, mine));
    };
    equal_everywhere(y);
    for (const auto& parameter : distributed_parameters(*layer)) {
      if (!parameter.description.scaled_batch) {
        equal_everywhere(parameter.tensor.grad());
      }
    }
  });
}

} // namespace
} // namespace tessera::testing
