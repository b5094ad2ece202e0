// Kernels of bf16 that stand in the place of libtorch's have its bits.
#include "tessera/half/bf16_kernels.h"

#include <ATen/CPUFunctions.h>
#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/half/operators.h"

namespace tessera::half {
namespace {

at::Tensor numbers(at::IntArrayRef shape, double scale) {
  return torch::randn(shape).mul(scale).to(at::kBFloat16);
}

bool same_bits(const at::Tensor& one, const at::Tensor& other) {
  return one.sizes() == other.sizes() &&
         one.contiguous().view(at::kShort).equal(other.contiguous().view(at::kShort));
}

struct Gelu {
  at::Tensor y;
  at::Tensor gradient;
};

Gelu gelu(const at::Tensor& x, const at::Tensor& gradient, const char* approximate) {
  const at::Tensor input = x.detach().requires_grad_(true);
  const at::Tensor y = at::gelu(input, approximate);
  y.backward(gradient);
  return {y.detach(), input.grad()};
}

// Which of them this libtorch lets in: the others are its own, and have its bits anyway.
bool are_used() {
  try_bf16_kernels();
  return gelu_is_tabled(at::zeros({1}, at::kBFloat16), true);
}

TEST(Bf16Kernels, GeluHasTheBitsOfLibtorchs) {
  torch::manual_seed(5);
  // One number, odd ones, more than a task, and what does not lie together.
  const std::vector<at::Tensor> inputs = {
      numbers({1}, 1),
      numbers({7, 33}, 3),
      numbers({70'001}, 1e-3),
      numbers({3, 40, 50}, 100),
      numbers({50, 60}, 2).t(),
      numbers({0}, 1)};
  std::vector<Gelu> wanted;
  for (const char* approximate : {"tanh", "none"}) {
    for (const at::Tensor& x : inputs) {
      wanted.push_back(gelu(x, numbers(x.sizes(), 0.3).mul(x.sign()), approximate));
    }
  }
  torch::manual_seed(5);
  for (const at::Tensor& x : inputs) { // the same gradients again
    numbers(x.sizes(), 1);
  }
  quicken_bf16();
  std::size_t i = 0;
  for (const char* approximate : {"tanh", "none"}) {
    for (const at::Tensor& x : inputs) {
      const Gelu got = gelu(x, numbers(x.sizes(), 0.3).mul(x.sign()), approximate);
      EXPECT_TRUE(same_bits(got.y, wanted[i].y)) << approximate << " " << x.sizes();
      EXPECT_TRUE(same_bits(got.gradient, wanted[i].gradient)) << approximate << " " << x.sizes();
      ++i;
    }
  }
}

TEST(Bf16Kernels, OtherTypesAndShapesAreLibtorchs) {
  quicken_bf16();
  const at::Tensor wide = torch::randn({40});
  EXPECT_TRUE(torch::allclose(
      at::gelu(wide, "tanh"), at::gelu(wide.to(at::kDouble), "tanh").to(at::kFloat)));
  const at::Tensor x = numbers({4, 6}, 1);
  // A gradient of another layout, as that of a transposed result.
  const at::Tensor gradient = numbers({6, 4}, 1).t();
  EXPECT_TRUE(same_bits(
      at::gelu_backward(gradient, x, "tanh"), at::gelu_backward(gradient.contiguous(), x, "tanh")));
}

// What stands between two runs of a norm, in place of a region.
NormRows last_rows;
bool gives_rows = false;
int norms_kept = 0;

void keep_last() {
  set_norm_rows_keeper(
      {[] { return gives_rows ? last_rows : NormRows(); },
       [](const NormRows& rows) {
         last_rows = rows;
         ++norms_kept;
       }});
}

TEST(Bf16Kernels, ANormFollowsFromItsRows) {
  quicken_bf16();
  keep_last();
  norms_kept = 0;
  torch::manual_seed(6);
  for (const std::int64_t size : {1, 3, 64, 1000}) {
    const at::Tensor x = numbers({5, 9, size}, 2).add(0.5);
    const at::Tensor weight = numbers({size}, 1);
    const at::Tensor bias = numbers({size}, 1);
    gives_rows = false;
    const auto first = at::native_layer_norm(x, {size}, weight, bias, 1e-5);
    gives_rows = are_used();
    const auto second = at::native_layer_norm(x, {size}, weight, bias, 1e-5);
    EXPECT_TRUE(same_bits(std::get<0>(first), std::get<0>(second))) << size;
    EXPECT_TRUE(same_bits(std::get<1>(first), std::get<1>(second))) << size;
    EXPECT_TRUE(same_bits(std::get<2>(first), std::get<2>(second))) << size;
  }
  gives_rows = false;
  EXPECT_EQ(norms_kept, are_used() ? 4 : 0);
}

TEST(Bf16Kernels, RowsOfAnotherNormAreRefused) {
  quicken_bf16();
  if (!are_used()) {
    GTEST_SKIP() << "this libtorch keeps its own kernels";
  }
  keep_last();
  const at::Tensor weight = numbers({8}, 1);
  gives_rows = false;
  at::native_layer_norm(numbers({5, 8}, 1), {8}, weight, weight, 1e-5);
  gives_rows = true;
  EXPECT_THROW(at::native_layer_norm(numbers({6, 8}, 1), {8}, weight, weight, 1e-5), UserError);
  gives_rows = false;
}

// As on a processor without products of bf16: only these are computed in f32.
TEST(Bf16Kernels, StandBesideWidenedProducts) {
  set_norm_rows_keeper({[] { return NormRows(); }, [](const NormRows& /*rows*/) {}});
  torch::manual_seed(8);
  const at::Tensor x = numbers({6, 40}, 2).requires_grad_(true);
  const at::Tensor factors = numbers({40}, 1).requires_grad_(true);
  const at::Tensor offsets = numbers({40}, 1).requires_grad_(true);
  widen_bf16_products();
  quicken_bf16();

  const at::Tensor y = at::layer_norm(x, {40}, factors, offsets);
  EXPECT_TRUE(same_bits(
      y.detach(),
      std::get<0>(
          at::cpu::native_layer_norm(x.detach(), {40}, factors.detach(), offsets.detach(), 1e-5))));
  y.sum().backward();
  for (const at::Tensor& given : {x, factors, offsets}) {
    EXPECT_EQ(given.grad().scalar_type(), at::kBFloat16);
  }
  const at::Tensor of_gelu = at::gelu(x.detach());
  const at::Tensor of_softmax = at::softmax(x.detach(), 0);
  // Where the processor has products of bf16, kernels called by hand ask for this.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  EXPECT_TRUE(same_bits(of_gelu, at::cpu::gelu(x.detach())));
  EXPECT_TRUE(same_bits(of_softmax, at::cpu::_softmax(x.detach(), 0, false)));
}

// Of Debian's libtorch, which this project is built on by default.
TEST(Bf16Kernels, AreUsedWithLibtorch113) {
  EXPECT_TRUE(are_used() || TORCH_VERSION_MAJOR > 1);
}

} // namespace
} // namespace tessera::half
