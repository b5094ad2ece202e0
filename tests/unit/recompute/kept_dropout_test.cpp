// Masks of dropout that a region keeps as bits: the numbers, gradients and states of the generator
// are those of at::dropout, and no mask is drawn twice.
#include "tessera/recompute/kept_dropout.h"

#include <cmath>
#include <functional>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include <gmock/gmock.h>

#include "tessera/base/error.h"
#include "tessera/recompute/dropout_bits.h"
#include "tessera/recompute/recomputation.h"
#include "tessera/tensor/value.h"

namespace tessera::recompute {
namespace {

using Forward = std::function<at::Tensor(const at::Tensor&)>;

enum class Random { kRestored, kNotRestored };

at::Tensor
in_region(const at::Tensor& x, const Forward& forward, Random random = Random::kRestored) {
  Region region;
  region.name = "module 'part'";
  region.keeps_products = true;
  region.preserve_rng_state = random == Random::kRestored;
  region.run = [forward](const c10::IValue& args) {
    return pack(forward(std::get<0>(unpack<std::tuple<at::Tensor>>(args))));
  };
  return unpack<at::Tensor>(run(std::move(region), pack(std::tuple<at::Tensor>(x))));
}

/// Result, gradient of x, and a number drawn after the forward and one after the backward.
std::vector<at::Tensor> numbers_of(const at::Tensor& values, const Forward& forward) {
  torch::manual_seed(11);
  const at::Tensor x = values.detach().clone().requires_grad_();
  const at::Tensor y = forward(x);
  const at::Tensor behind = torch::rand({1});
  y.backward(torch::linspace(-1, 1, y.numel()).view(y.sizes()).to(y.scalar_type()));
  return {y.detach(), x.grad(), behind, torch::rand({1})};
}

void expect_same(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& wanted) {
  const std::vector<const char*> names = {"result", "gradient", "after forward", "after backward"};
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_TRUE(found[i].equal(wanted[i])) << names[i];
    EXPECT_EQ(found[i].strides(), wanted[i].strides()) << names[i];
  }
}

TEST(DropoutBits, TimesAPartOfAMaskIsTheProductOfTensors) {
  torch::manual_seed(2);
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
    for (const std::int64_t elements : {1, 63, 64, 65, 1000}) {
      const at::Tensor mask = torch::empty({elements}).bernoulli_(0.7).div_(0.7).to(dtype);
      const at::Tensor bits = bits_of_mask(mask);
      EXPECT_TRUE(are_bits_of(bits, elements));
      EXPECT_FALSE(are_bits_of(bits, elements + 64));
      const at::Tensor x = torch::randn({elements}).to(dtype);
      EXPECT_TRUE(times_mask(x, bits).equal(x * mask));
      for (const std::int64_t first : {0, 1, 40, 64, 130}) {
        for (const std::int64_t count : {1, 24, 64, 200}) {
          if (first + count > elements) {
            continue;
          }
          at::Tensor part = x.narrow(0, first, count).clone();
          multiply_by_mask(part, bits, first, part);
          EXPECT_TRUE(part.equal((x * mask).narrow(0, first, count))) << first << " " << count;
        }
      }
    }
  }
}

TEST(DropoutBits, WhatIsDroppedIsMultipliedByZero) {
  const at::Tensor bits = bits_of_mask(torch::zeros({3}));
  const at::Tensor y = times_mask(torch::tensor({-1.0F, INFINITY, 2.0F}), bits);
  EXPECT_TRUE(std::signbit(y[0].item<float>()));
  EXPECT_TRUE(std::isnan(y[1].item<float>()));
}

TEST(KeptDropout, HasTheBitsOfDropout) {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    for (const double probability : {0.1, 0.5, 1.0, 0.0}) {
      for (const bool turned : {false, true}) {
        torch::manual_seed(1);
        const at::Tensor values = torch::randn({7, 13}).to(dtype);
        // A number is drawn between two masks; gelu keeps what its backward needs of them.
        const auto twice = [&](const Forward& drop) {
          return [=](const at::Tensor& x) {
            const at::Tensor a = torch::gelu(drop(turned ? x.t() : x));
            return drop(a * torch::rand({1}).to(a.scalar_type()));
          };
        };
        const Forward plain =
            twice([=](const at::Tensor& x) { return torch::dropout(x, probability, true); });
        const Forward kept =
            twice([=](const at::Tensor& x) { return kept_dropout(x, probability); });
        const auto wanted = numbers_of(values, plain);
        expect_same(numbers_of(values, kept), wanted);
        expect_same(
            numbers_of(values, [&](const at::Tensor& x) { return in_region(x, kept); }), wanted);
      }
    }
  }
}

TEST(KeptDropout, AMaskIsDrawnOnce) {
  int drawn = 0;
  int skipped = 0;
  const Forward forward = [&](const at::Tensor& x) {
    const at::Tensor mask = torch::arange(x.numel()).remainder(3).ne(0).to(torch::kFloat) * 1.5;
    const MaskSource source{
        [&] {
          ++drawn;
          return mask;
        },
        [&] { ++skipped; }};
    return kept_dropout(torch::exp(x), source).pow(2);
  };
  const at::Tensor values = torch::linspace(0, 1, 9);
  const auto wanted = numbers_of(values, forward);
  EXPECT_EQ(std::tuple(drawn, skipped), std::tuple(1, 0));
  const auto found = numbers_of(values, [&](const at::Tensor& x) { return in_region(x, forward); });
  EXPECT_EQ(std::tuple(drawn, skipped), std::tuple(2, 1));
  expect_same(found, wanted);
}

TEST(KeptDropout, WithoutTheRandomStateTheGeneratorIsLeftAlone) {
  const Forward kept = [](const at::Tensor& x) { return kept_dropout(torch::exp(x), 0.5); };
  const at::Tensor values = torch::randn({40});
  const auto wanted = numbers_of(values, kept);
  // The mask is that of the first run, all the same.
  expect_same(
      numbers_of(
          values, [&](const at::Tensor& x) { return in_region(x, kept, Random::kNotRestored); }),
      wanted);
}

TEST(KeptDropout, AMaskOfOtherSizesIsAnError) {
  int calls = 0;
  const Forward forward = [&](const at::Tensor& x) {
    const at::Tensor some = ++calls == 1 ? x : torch::cat({x, x});
    return kept_dropout(some, 0.5).sum();
  };
  const at::Tensor y = in_region(torch::randn({65}).requires_grad_(), forward);
  try {
    y.backward();
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("the mask of a tensor of other sizes"));
  }
}

TEST(KeptDropout, MoreOrFewerThanInTheFirstRunIsAnError) {
  for (const int more : {-1, 1}) {
    int calls = 0;
    const Forward forward = [&](const at::Tensor& x) {
      const int drops = ++calls == 1 ? 2 : 2 + more;
      at::Tensor y = x;
      for (int i = 0; i < drops; ++i) {
        y = kept_dropout(y, 0.5);
      }
      return y;
    };
    const at::Tensor y = in_region(torch::randn({8}).requires_grad_(), forward);
    EXPECT_THROW(y.sum().backward(), UserError) << more;
  }
}

} // namespace
} // namespace tessera::recompute
