#include "tessera/nn/layers/linear.h"

#include "tessera/base/error.h"

#include "ranks.h"

namespace tessera::testing {
namespace {

class LinearLayer : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(
    Settings,
    LinearLayer,
    ::testing::ValuesIn(all_settings({nn::Distribution::kSpeed})),
    [](const auto& info) { return info.param.name(); });

void compare_with_plain(const Setting& setting, std::int64_t in, std::int64_t out, bool bias) {
  const auto samples = uneven_samples(setting.tp);
  std::int64_t batch = 0;
  for (const std::int64_t count : samples) {
    batch += count;
  }
  auto plain =
      seeded(5, [&] { return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias)); });
  auto x = fixed_random({batch, 3, in}, 6).requires_grad_();
  const auto weights = fixed_random({batch, 3, out}, 7);
  const auto y = plain(x);
  (y * weights).sum().backward();
  const auto gradients = gradients_of(*plain);

  on_ranks(setting, [&](const nn::TensorParallel& parallel) {
    auto layer = seeded(5, [&] {
      return nn::DistributedLinear(nn::DistributedLinearOptions{in, out, bias});
    });
    expect_parts_of(*layer, parameters_of(*plain));
    auto own = own_part(parallel, x.detach(), samples).clone().requires_grad_();
    const auto result = layer(own);
    expect_close(result, own_part(parallel, y, samples), "output");
    (result * own_part(parallel, weights, samples)).sum().backward();
    expect_close(own.grad(), own_part(parallel, x.grad(), samples), "input gradient");
    expect_gradients(parallel, *layer, gradients);
  });
}

TEST_P(LinearLayer, EqualsThePlainLayer) {
  compare_with_plain(GetParam(), 8, 6, true);
}
TEST_P(LinearLayer, EqualsThePlainLayerForOddSizes) {
  compare_with_plain(GetParam(), 7, 5, true);
}
TEST_P(LinearLayer, EqualsThePlainLayerWithoutBias) {
  compare_with_plain(GetParam(), 9, 1, false);
}
TEST_P(LinearLayer, RanksWithoutAnyInputFeatureTakePart) {
  compare_with_plain(GetParam(), 3, 2, true); // tp 4: one rank has none
}

TEST_P(LinearLayer, BytesFollowTheFormulas) {
  const Setting setting = GetParam();
  on_ranks(setting, [&](const nn::TensorParallel& parallel) {
    nn::DistributedLinear layer(16, 24);
    auto x = torch::ones({4, 16}).requires_grad_();
    auto& bytes = parallel.group->traffic().bytes;
    const std::int64_t n = parallel.size();
    const std::int64_t rows = 4 * 4; // bytes of a column of this rank's rows
    std::int64_t before = bytes;
    const auto y = layer(x);
    const std::int64_t forward = setting.prescaled ? 2 * (n - 1) * rows * 24 / n
                                 : n == 1          ? 0
                                                   : (n - 1) * (rows * 16 / n + rows * 24 + 8);
    EXPECT_EQ(bytes - before, forward);
    before = bytes;
    y.sum().backward();
    const std::int64_t backward =
        setting.prescaled ? (n - 1) * rows * 16 / n : (n - 1) * (rows * 24 + rows * 16 / n);
    EXPECT_EQ(bytes - before, backward);
  });
}

TEST_P(LinearLayer, AnInputWithoutGradientGetsNone) {
  on_ranks(GetParam(), [&](const nn::TensorParallel& parallel) {
    nn::DistributedLinear layer(8, 4);
    const auto y = layer(torch::ones({2, 8}));
    const std::int64_t before = parallel.group->traffic().calls;
    y.sum().backward();
    // The results' gradients of own samples are gathered, nothing else is sent.
    EXPECT_EQ(
        parallel.group->traffic().calls - before,
        GetParam().prescaled || parallel.size() == 1 ? 0 : 1);
    EXPECT_TRUE(layer->weight.grad().defined());
  });
}

TEST(LinearErrors, NameTheFeatures) {
  nn::DistributedLinear layer(4, 2);
  try {
    layer(torch::ones({2, 5}));
    FAIL();
  } catch (const ShapeError& e) {
    EXPECT_NE(std::string(e.what()).find("in_features"), std::string::npos);
  }
}

} // namespace
} // namespace tessera::testing
