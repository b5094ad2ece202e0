// The softmax of bf16 that stands in the place of libtorch's has its bits.
#include "tessera/half/bf16_softmax.h"

#include <cstdlib>
#include <limits>
#include <string>

#include <ATen/CPUFunctions.h>
#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/half/operators.h"
#include "tessera/tensor/torch_compat.h"

namespace tessera::half {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

at::Tensor scores(at::IntArrayRef shape, double scale) {
  return torch::randn(shape).mul(scale).to(at::kBFloat16);
}

/// Each row sees the keys before it and its own.
at::Tensor causal(at::IntArrayRef shape, double hidden) {
  const at::Tensor one = scores(shape, 1);
  const at::Tensor hides = torch::ones(shape, at::kBool).triu(1);
  return one.masked_fill(hides, hidden);
}

void expect_bits_of_libtorch(const at::Tensor& x, const std::string& what) {
  const at::Tensor got = at::softmax(x, -1);
  const at::Tensor wanted = at::cpu::_softmax(x, -1, false);
  ASSERT_EQ(got.sizes(), wanted.sizes()) << what;
  ASSERT_EQ(got.scalar_type(), at::kBFloat16) << what;
  EXPECT_TRUE(got.isnan().equal(wanted.isnan())) << what;
  EXPECT_EQ(
      (got.view(at::kShort) != wanted.view(at::kShort))
          .logical_and(wanted.isnan().logical_not())
          .sum()
          .item<std::int64_t>(),
      0)
      << what;
}

TEST(Bf16Softmax, HasTheBitsOfLibtorchs) {
  quicken_bf16();
  torch::manual_seed(8);
  for (const std::int64_t size : {1, 5, 16, 17, 32, 48, 64, 100, 512, 1024}) {
    expect_bits_of_libtorch(scores({300, size}, 3), "of " + std::to_string(size));
  }
  expect_bits_of_libtorch(scores({2, 3, 700, 512}, 1), "more than a task");
  expect_bits_of_libtorch(scores({40, 96}, 300), "where most vanish");
  expect_bits_of_libtorch(scores({64}, 1), "one row");
  expect_bits_of_libtorch(scores({0, 64}, 1), "none");
}

TEST(Bf16Softmax, HasTheBitsOfLibtorchsUnderMasks) {
  quicken_bf16();
  torch::manual_seed(9);
  for (const double hidden : {-1e4, -3e38, -static_cast<double>(kInfinity)}) {
    expect_bits_of_libtorch(causal({3, 256, 256}, hidden), "causal " + std::to_string(hidden));
  }
  expect_bits_of_libtorch(torch::full({4, 32}, -3e38, at::kBFloat16), "all alike");
}

TEST(Bf16Softmax, LeavesWhatIsNotFiniteToLibtorch) {
  quicken_bf16();
  torch::manual_seed(10);
  const std::vector<float> numbers = {kInfinity, std::numeric_limits<float>::quiet_NaN()};
  for (const float number : numbers) {
    at::Tensor x = scores({6, 64}, 1);
    x[2][37] = number;
    expect_bits_of_libtorch(x, std::to_string(number));
  }
  at::Tensor negative = scores({6, 64}, 1);
  negative[1][3] = std::copysign(std::numeric_limits<float>::quiet_NaN(), -1.0F);
  expect_bits_of_libtorch(negative, "a negative one that is no number");
  at::Tensor hidden = scores({6, 64}, 1);
  hidden[4].fill_(-kInfinity);
  expect_bits_of_libtorch(hidden, "a row that sees nothing");
}

TEST(Bf16Softmax, OtherDimensionsAndTypesAreLibtorchs) {
  quicken_bf16();
  torch::manual_seed(11);
  const at::Tensor x = scores({32, 64}, 1);
  EXPECT_FALSE(softmax_is_quick(x, 0));
  EXPECT_FALSE(softmax_is_quick(x.t(), -1));
  EXPECT_FALSE(softmax_is_quick(x.to(at::kFloat), -1));
  EXPECT_FALSE(softmax_is_quick(scores({2, 17}, 1), -1));
  EXPECT_TRUE(at::softmax(x, 0).equal(at::cpu::_softmax(x, 0, false)));
  EXPECT_TRUE(at::softmax(x.t(), -1).equal(at::cpu::_softmax(x.t(), -1, false)));
  EXPECT_TRUE(
      at::softmax(x.to(at::kFloat), -1).equal(at::cpu::_softmax(x.to(at::kFloat), -1, false)));
}

#if defined(__x86_64__) && TORCH_VERSION_MAJOR == 1 && TORCH_VERSION_MINOR == 13
// Of Debian's libtorch, which this project is built on by default.
TEST(Bf16Softmax, IsUsedWithLibtorch113) {
  if (__builtin_cpu_supports("avx2") == 0 || std::getenv("ATEN_CPU_CAPABILITY") != nullptr) {
    GTEST_SKIP() << "libtorch does not compute several numbers at a time here";
  }
  quicken_bf16();
  EXPECT_TRUE(softmax_is_quick(scores({2, 64}, 1), -1));
  EXPECT_TRUE(softmax_is_quick(scores({3, 2, 64}, 1), 2));
}
#endif

} // namespace
} // namespace tessera::half
