// Norms of bf16 whose rows a region keeps, beside kernels of bf16: the numbers are those of a call
// without a region, to the bit.
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include <gmock/gmock.h>

#include "tessera/base/error.h"
#include "tessera/half/norm_rows.h"
#include "tessera/half/operators.h"
#include "tessera/recompute/kept_dropout.h"
#include "tessera/recompute/kept_products.h"
#include "tessera/recompute/recomputation.h"
#include "tessera/tensor/value.h"

namespace tessera::recompute {
namespace {

constexpr std::int64_t kWidth = 48;

struct Norms {
  Norms() {
    torch::manual_seed(8);
    for (at::Tensor* one : {&scale, &shift}) {
      *one = torch::randn({kWidth}).to(at::kBFloat16).requires_grad_();
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (int i = 0; i < 2; ++i) {
      y = torch::layer_norm(kept_dropout(torch::gelu(y, "tanh"), 0.3), {norm_size}, scale, shift);
    }
    return y.tanh() + x;
  }
  at::Tensor in_region(const at::Tensor& x) {
    Region region;
    region.name = "module 'part'";
    region.keeps_products = true;
    region.run = [this](const c10::IValue& args) {
      return pack(forward(std::get<0>(unpack<std::tuple<at::Tensor>>(args))));
    };
    return unpack<at::Tensor>(run(std::move(region), pack(std::tuple<at::Tensor>(x))));
  }
  at::Tensor scale, shift;
  std::int64_t norm_size = kWidth;
};

/// Result and gradients of x and of the norms' parameters.
std::vector<at::Tensor> norm_numbers(bool in_region) {
  Norms layer;
  torch::manual_seed(9);
  const at::Tensor x = torch::randn({7, kWidth}).mul(2).to(at::kBFloat16).requires_grad_();
  const at::Tensor y = in_region ? layer.in_region(x) : layer.forward(x);
  y.backward(torch::linspace(-1, 1, y.numel()).view(y.sizes()).to(at::kBFloat16));
  return {y.detach(), x.grad(), layer.scale.grad(), layer.shift.grad()};
}

void expect_equal_numbers(
    const std::vector<at::Tensor>& found,
    const std::vector<at::Tensor>& wanted) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_TRUE(found[i].equal(wanted[i])) << "of number " << i;
  }
}

TEST(KeptNorm, NumbersAreThoseOfLibtorchToTheBit) {
  const std::vector<at::Tensor> wanted = norm_numbers(false); // by libtorch's own kernels
  half::quicken_bf16();
  expect_equal_numbers(norm_numbers(false), wanted);
  expect_equal_numbers(norm_numbers(true), wanted);
}

int kept = 0;
int given = 0;

TEST(KeptNorm, TheSecondRunTakesTheRowsOfTheFirst) {
  half::quicken_bf16();
  norm_numbers(true); // lets the regions be asked, before this test stands between
  half::set_norm_rows_keeper(
      {[] {
         const half::NormRows rows = given_norm_rows();
         given += rows.mean.defined() ? 1 : 0;
         return rows;
       },
       [](const half::NormRows& rows) {
         kept += masks_are_kept() ? 1 : 0;
         keep_norm_rows(rows);
       }});
  norm_numbers(true);
  half::set_norm_rows_keeper({&given_norm_rows, &keep_norm_rows});
  if (TORCH_VERSION_MAJOR == 1) { // of a later one it may be none
    EXPECT_EQ(kept, 2);
  }
  EXPECT_EQ(given, kept);
}

TEST(KeptNorm, AFlowThatChangesIsAnError) {
  half::quicken_bf16();
  Norms layer;
  const at::Tensor x = torch::randn({7, kWidth}).to(at::kBFloat16).requires_grad_();
  Region region;
  region.name = "module 'part'";
  region.keeps_products = true;
  bool second = false;
  region.run = [&](const c10::IValue& args) {
    at::Tensor y = std::get<0>(unpack<std::tuple<at::Tensor>>(args));
    for (int i = second ? 1 : 0; i < 2; ++i) {
      y = torch::layer_norm(y, {kWidth}, layer.scale, layer.shift);
    }
    return pack(y);
  };
  const at::Tensor y = unpack<at::Tensor>(run(region, pack(std::tuple<at::Tensor>(x))));
  second = TORCH_VERSION_MAJOR == 1;
  const auto backward = [&] { y.sum().backward(); };
  if (second) {
    EXPECT_THROW(backward(), UserError);
  } else {
    backward();
  }
}

} // namespace
} // namespace tessera::recompute
