#include "tessera/half/convert.h"

#include <torch/torch.h>

#include <gtest/gtest.h>

namespace tessera::half {
namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    a = register_module("a", torch::nn::Linear(3, 3));
    tied = register_parameter("tied", a->weight);
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
    exact = register_buffer("exact", torch::ones({2}, torch::kDouble));
  }
  torch::nn::Linear a{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor tied, exact;
};
TORCH_MODULE(Net);

TEST(Convert, FloatingTensorsInPlace) {
  Net net;
  const torch::Tensor weight = net->a->weight;
  const torch::Tensor before = weight.detach().clone();
  weight.mutable_grad() = torch::ones_like(weight);
  convert(*net, at::kHalf);
  EXPECT_EQ(weight.scalar_type(), at::kHalf);
  EXPECT_TRUE(net->a->weight.is_same(weight));
  EXPECT_TRUE(net->tied.is_same(weight)) << "one parameter still";
  EXPECT_TRUE(weight.requires_grad());
  EXPECT_TRUE(weight.is_leaf());
  EXPECT_TRUE(weight.equal(before.to(at::kHalf)));
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_EQ(net->norm->running_mean.scalar_type(), at::kHalf);
  EXPECT_EQ(net->norm->num_batches_tracked.scalar_type(), at::kLong);
  EXPECT_EQ(net->exact.scalar_type(), at::kHalf);
}

// A backward after it gives gradients of the new type, also where one ran before.
TEST(Convert, GradientsHaveTheNewType) {
  torch::nn::Linear net(3, 3);
  net(torch::ones({2, 3})).sum().backward();
  convert(*net, at::kBFloat16);
  net(torch::ones({2, 3}, torch::kBFloat16)).sum().backward();
  EXPECT_EQ(net->weight.grad().scalar_type(), at::kBFloat16);
}

} // namespace
} // namespace tessera::half
