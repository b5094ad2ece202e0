// f16 operators on the processor: f32 results, rounded.
#include "tessera/half/operators.h"

#include <torch/torch.h>

#include <gtest/gtest.h>

namespace tessera::half {
namespace {

using Tensors = std::vector<at::Tensor>;
using Run = std::function<at::Tensor(const Tensors&)>;

Tensors random(const std::vector<std::vector<std::int64_t>>& shapes, at::ScalarType type) {
  torch::manual_seed(3);
  Tensors list;
  for (const auto& shape : shapes) {
    list.push_back(torch::randn(shape).to(at::kHalf).to(type).requires_grad_(true));
  }
  return list;
}

/// The result in f16 is the rounded one of f32 on the same numbers; so are gradients, but where a
/// backward passes rounded numbers on.
void expect_rounded(
    const std::string& what,
    const std::vector<std::vector<std::int64_t>>& shapes,
    const Run& run,
    double tolerance = 2e-3) {
  support_processor();
  const Tensors wide = random(shapes, at::kFloat);
  const Tensors half = random(shapes, at::kHalf);
  const at::Tensor wanted = run(wide);
  const at::Tensor got = run(half);
  ASSERT_EQ(got.scalar_type(), at::kHalf) << what;
  EXPECT_TRUE(got.equal(wanted.to(at::kHalf))) << what;
  wanted.sum().backward();
  got.sum().backward();
  for (std::size_t i = 0; i < wide.size(); ++i) {
    if (!wide[i].grad().defined()) {
      EXPECT_FALSE(half[i].grad().defined()) << what;
      continue;
    }
    ASSERT_TRUE(half[i].grad().defined()) << what;
    EXPECT_EQ(half[i].grad().scalar_type(), at::kHalf) << what;
    EXPECT_TRUE(
        torch::allclose(half[i].grad().to(at::kFloat), wide[i].grad(), tolerance, tolerance))
        << what << ", gradient " << i;
  }
}

TEST(HalfOperators, Products) {
  expect_rounded("mm", {{3, 4}, {4, 5}}, [](const Tensors& t) { return at::mm(t[0], t[1]); });
  expect_rounded("linear", {{2, 3, 4}, {5, 4}, {5}}, [](const Tensors& t) {
    return at::linear(t[0], t[1], t[2]);
  });
  expect_rounded(
      "bmm", {{2, 3, 4}, {2, 4, 5}}, [](const Tensors& t) { return at::matmul(t[0], t[1]); });
  expect_rounded("baddbmm", {{2, 3, 5}, {2, 3, 4}, {2, 4, 5}}, [](const Tensors& t) {
    return at::baddbmm(t[0], t[1], t[2]);
  });
  expect_rounded("mv", {{3, 4}, {4}}, [](const Tensors& t) { return at::matmul(t[0], t[1]); });
  expect_rounded("dot", {{4}, {4}}, [](const Tensors& t) { return at::dot(t[0], t[1]); });
  expect_rounded("conv2d", {{2, 3, 6, 6}, {4, 3, 3, 3}, {4}}, [](const Tensors& t) {
    return at::conv2d(t[0], t[1], t[2]);
  });
}

// Products that write to a tensor of the caller's, as gradients are added.
TEST(HalfOperators, InPlace) {
  support_processor();
  const at::NoGradGuard no_grad;
  const Tensors wide = random({{3, 5}, {3, 4}, {4, 5}}, at::kFloat);
  const Tensors half = random({{3, 5}, {3, 4}, {4, 5}}, at::kHalf);
  at::Tensor sum = half[0].clone();
  at::Tensor& same = sum.addmm_(half[1], half[2]);
  EXPECT_TRUE(same.is_same(sum));
  EXPECT_TRUE(sum.equal(at::addmm(wide[0], wide[1], wide[2]).to(at::kHalf)));
  at::Tensor out = at::empty({0}, at::kHalf);
  at::mm_out(out, half[1], half[2]);
  EXPECT_TRUE(out.equal(at::mm(wide[1], wide[2]).to(at::kHalf)));
  at::Tensor part = at::zeros({5, 4}, at::kHalf).t().narrow(1, 0, 5); // not contiguous
  at::mm_out(part, at::ones({4, 2}, at::kHalf), at::ones({2, 5}, at::kHalf));
  EXPECT_TRUE(part.equal(at::full({4, 5}, 2, at::kHalf)));
}

TEST(HalfOperators, Norms) {
  for (const std::int64_t dim : {0, 1}) {
    expect_rounded("softmax", {{3, 4}}, [dim](const Tensors& t) { return at::softmax(t[0], dim); });
    expect_rounded(
        "log_softmax", {{3, 4}}, [dim](const Tensors& t) { return at::log_softmax(t[0], dim); });
  }
  expect_rounded(
      "layer_norm",
      {{3, 8}, {8}, {8}},
      [](const Tensors& t) { return at::layer_norm(t[0], {8}, t[1], t[2]); },
      1e-2);
}

// The running statistics change in f16 as they do in f32.
TEST(HalfOperators, BatchNorm) {
  support_processor();
  Tensors statistics[2];
  Tensors results[2];
  int i = 0;
  for (const auto type : {at::kFloat, at::kHalf}) {
    const Tensors t = random({{4, 3}, {3}, {3}}, type);
    statistics[i] = {at::zeros({3}, type), at::ones({3}, type)};
    const at::Tensor y = at::batch_norm(
        t[0], t[1], t[2], statistics[i][0], statistics[i][1], true, 0.5, 1e-5, false);
    y.pow(2).sum().backward();
    results[i++] = {y, t[0].grad(), t[1].grad()};
  }
  for (int k = 0; k < 3; ++k) {
    EXPECT_TRUE(torch::allclose(results[1][k].to(at::kFloat), results[0][k], 1e-2, 1e-2)) << k;
  }
  for (int k = 0; k < 2; ++k) {
    EXPECT_TRUE(statistics[1][k].equal(statistics[0][k].to(at::kHalf))) << k;
  }
  EXPECT_FALSE(statistics[0][0].equal(at::zeros({3})));
}

TEST(HalfOperators, Activations) {
  const std::pair<const char*, at::Tensor (*)(const at::Tensor&)> functions[] = {
      {"gelu", [](const at::Tensor& x) { return at::gelu(x); }},
      {"gelu tanh", [](const at::Tensor& x) { return at::gelu(x, "tanh"); }},
      {"relu", [](const at::Tensor& x) { return at::relu(x); }},
      {"silu", [](const at::Tensor& x) { return at::silu(x); }},
      {"mish", [](const at::Tensor& x) { return at::mish(x); }},
      {"tanh", [](const at::Tensor& x) { return at::tanh(x); }},
      {"sigmoid", [](const at::Tensor& x) { return at::sigmoid(x); }},
      {"leaky_relu", [](const at::Tensor& x) { return at::leaky_relu(x, 0.1); }},
      {"elu", [](const at::Tensor& x) { return at::elu(x); }},
      {"softplus", [](const at::Tensor& x) { return at::softplus(x); }},
      {"clamp", [](const at::Tensor& x) { return at::clamp(x, -0.5, 0.5); }},
      {"exp", [](const at::Tensor& x) { return at::exp(x); }},
      {"rsqrt", [](const at::Tensor& x) { return at::rsqrt(x.abs()); }},
      {"cumsum", [](const at::Tensor& x) { return at::cumsum(x, 0); }},
  };
  for (const auto& [name, function] : functions) {
    expect_rounded(
        name, {{5, 7}}, [function = function](const Tensors& t) { return function(t[0]); });
  }
}

// Who asks for a type gets it, with the bits that f16 has not: 2049 is none of its numbers.
TEST(HalfOperators, AResultHasTheTypeThatIsAskedFor) {
  support_processor();
  const at::Tensor ones = at::ones({2049}, at::kHalf).requires_grad_(true);
  for (const auto type : {at::kFloat, at::kDouble}) {
    for (const at::Tensor& sum :
         {at::cumsum(ones, 0, type).select(0, -1),
          at::sum(ones, type),
          at::sum(ones, {0}, false, type)}) {
      EXPECT_EQ(sum.scalar_type(), type);
      EXPECT_EQ(sum.item<double>(), 2049);
    }
    for (const at::Tensor& other :
         {at::softmax(ones, 0, type),
          at::log_softmax(ones, 0, type),
          at::mean(ones, type),
          at::prod(ones, type)}) {
      EXPECT_EQ(other.scalar_type(), type);
    }
    at::cumsum(ones, 0, type).sum().backward();
    EXPECT_EQ(ones.grad().scalar_type(), at::kHalf);
  }
  EXPECT_EQ(at::cumsum(ones, 0, at::kHalf).scalar_type(), at::kHalf);
}

// A mask is drawn with the numbers that f32 would draw.
TEST(HalfOperators, DropoutDrawsTheSameNumbers) {
  support_processor();
  at::Tensor results[2];
  int i = 0;
  for (const auto type : {at::kFloat, at::kHalf}) {
    torch::manual_seed(5);
    results[i++] = torch::dropout(at::ones({100}, type), 0.5, true);
  }
  EXPECT_TRUE(results[1].to(at::kFloat).equal(results[0]));
}

// Other types keep libtorch's kernels and libtorch's errors.
TEST(HalfOperators, MixedTypesAreStillRefused) {
  support_processor();
  const at::Tensor half = at::ones({2, 2}, at::kHalf);
  EXPECT_THROW(at::mm(half, at::ones({2, 2})), c10::Error);
  EXPECT_THROW(at::addmm(at::ones({2}), half, half), c10::Error);
  const at::Tensor x = at::ones({2, 2}, at::kBFloat16);
  EXPECT_EQ(at::mm(x, x).scalar_type(), at::kBFloat16);
  EXPECT_EQ(at::mm(x.to(at::kDouble), x.to(at::kDouble)).scalar_type(), at::kDouble);
}

// Every name of the list is an operator's with a processor kernel, else registering had failed.
TEST(HalfOperators, AreListed) {
  support_processor();
  const auto names = widened_operators();
  EXPECT_GT(names.size(), 50U);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
}

// Sums of bf16 products are those of f32, rounded once; other types and mixtures are left alone.
TEST(Bf16Products, AreThoseOfF32Rounded) {
  widen_bf16_products();
  const auto bf16 = [](const at::Tensor& t) { return t.detach().to(at::kBFloat16); };
  torch::manual_seed(3);
  const at::Tensor a = bf16(torch::randn({33, 257}));
  const at::Tensor b = bf16(torch::randn({257, 65}));
  const at::Tensor wanted = at::mm(a.to(at::kFloat), b.to(at::kFloat));
  EXPECT_TRUE(at::mm(a, b).equal(bf16(wanted)));
  EXPECT_TRUE(at::matmul(a.expand({2, 33, 257}), b.expand({2, 257, 65}))
                  .equal(bf16(wanted).expand({2, 33, 65})));
  at::Tensor sum = bf16(torch::randn({33, 65}));
  const at::Tensor added = bf16(at::addmm(sum.to(at::kFloat), a.to(at::kFloat), b.to(at::kFloat)));
  EXPECT_TRUE(sum.addmm_(a, b).is_same(sum));
  EXPECT_TRUE(sum.equal(added));
  EXPECT_THROW(at::mm(a, b.to(at::kFloat)), c10::Error);

  const at::Tensor weight = b.clone().requires_grad_(true);
  at::mm(a, weight).sum().backward();
  ASSERT_EQ(weight.grad().scalar_type(), at::kBFloat16);
  const at::Tensor ones = at::ones({33, 65});
  EXPECT_TRUE(weight.grad().equal(bf16(at::mm(a.to(at::kFloat).t(), ones))));
}

// One kernel serves both types, whichever was asked for first.
TEST(Bf16Products, StandBesideThoseOfF16) {
  widen_bf16_products();
  support_processor();
  widen_bf16_products();
  const at::Tensor a = torch::randn({3, 4});
  const at::Tensor b = torch::randn({4, 5});
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    const at::Tensor x = a.to(type);
    const at::Tensor y = b.to(type);
    EXPECT_TRUE(at::mm(x, y).equal(at::mm(x.to(at::kFloat), y.to(at::kFloat)).to(type))) << type;
  }
}

} // namespace
} // namespace tessera::half
