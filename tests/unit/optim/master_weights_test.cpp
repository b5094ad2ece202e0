#include "tessera/optim/master_weights.h"

#include <torch/torch.h>

#include <gtest/gtest.h>

namespace tessera::optim {
namespace {

class Masters : public ::testing::TestWithParam<at::ScalarType> {};

// An update below the parameter's last bit is lost without a master: 256 of
// them are one eighth with it.
TEST_P(Masters, SmallUpdatesAddUp) {
  const auto parameter = torch::ones({3}, torch::TensorOptions(GetParam())).requires_grad_();
  const auto alone = parameter.detach().clone().requires_grad_();
  MasterWeights masters;
  const auto master = masters.add(parameter);
  ASSERT_EQ(master.scalar_type(), at::kFloat);
  torch::optim::SGD optimizer({master}, torch::optim::SGDOptions(1.0));
  torch::optim::SGD rounding({alone}, torch::optim::SGDOptions(1.0));
  constexpr double kUpdate = 1.0 / 8192; // bits end at 1/256 (f16: 1/2048)
  for (int i = 0; i < 1024; ++i) {
    for (const auto& tensor : {parameter, alone}) {
      tensor.mutable_grad() = torch::full_like(tensor, kUpdate);
    }
    masters.take_gradients();
    optimizer.step();
    masters.write_back();
    rounding.step();
  }
  EXPECT_TRUE(master.equal(torch::full({3}, 0.875)));
  EXPECT_TRUE(parameter.equal(torch::full_like(parameter, 0.875)));
  EXPECT_TRUE(alone.equal(torch::ones_like(alone)));
}

TEST_P(Masters, ParameterIsTheRoundedMaster) {
  torch::manual_seed(1);
  const auto parameter = torch::randn({100}).to(GetParam()).requires_grad_(true);
  MasterWeights masters;
  const auto master = masters.add(parameter);
  EXPECT_TRUE(master.equal(parameter.detach().to(at::kFloat)));
  EXPECT_TRUE(master.requires_grad());
  EXPECT_TRUE(master.is_leaf());
  EXPECT_TRUE(masters.of(parameter).is_same(master));
  parameter.mutable_grad() = torch::randn({100}).to(GetParam());
  masters.take_gradients();
  EXPECT_TRUE(master.grad().equal(parameter.grad().to(at::kFloat)));
  {
    const torch::NoGradGuard no_grad;
    master.sub_(master.grad() * 0.01);
  }
  masters.write_back();
  EXPECT_TRUE(parameter.equal(master.detach().to(GetParam())));
  EXPECT_FALSE(master.grad().defined()); // its memory is free until the next
}

// A gradient that is f32 already is the script's: a master has a copy, which alone is divided by
// the loss scale and clipped.
TEST_P(Masters, AnF32GradientIsNotTheMastersOwn) {
  const auto parameter = torch::ones({2}, torch::TensorOptions(GetParam())).requires_grad_();
  MasterWeights masters;
  const auto master = masters.add(parameter);
  const double exact = 256 + 1.0 / 1024; // in f32
  parameter.mutable_grad() = torch::full({2}, exact);
  for (int i = 0; i < 2; ++i) {
    masters.take_gradients(4);
    EXPECT_TRUE(parameter.grad().equal(torch::full({2}, exact)));
    EXPECT_TRUE(master.grad().equal(torch::full({2}, exact / 4)));
  }
}

// Clipping changes both; the master keeps the bits that the parameter's gradient loses.
TEST_P(Masters, AKeptGradientStaysUntilTheParametersChanges) {
  const auto parameter = torch::ones({2}, torch::TensorOptions(GetParam())).requires_grad_();
  MasterWeights masters;
  const auto master = masters.add(parameter);
  parameter.mutable_grad() = torch::full_like(parameter, 3.0);
  masters.take_gradients();
  for (at::Tensor gradient : {parameter.grad(), master.grad()}) {
    gradient.mul_(1.0 / 7);
  }
  masters.keep_gradients();
  masters.take_gradients(); // the optimizer's step
  const float clipped = 3 * static_cast<float>(1.0 / 7);
  EXPECT_TRUE(master.grad().equal(torch::full({2}, clipped)));
  EXPECT_FALSE(master.grad().equal(parameter.grad().to(at::kFloat)));
  parameter.mutable_grad().add_(1); // another backward
  masters.take_gradients();
  EXPECT_TRUE(master.grad().equal(parameter.grad().to(at::kFloat)));
  masters.keep_gradients();
  masters.write_back();
  masters.take_gradients(); // the next step without a new gradient
  EXPECT_TRUE(master.grad().equal(parameter.grad().to(at::kFloat)));
}

// A state that is loaded, or weights that are clamped, are not undone by the next step; numbers
// that stay what they were keep their master's bits.
TEST_P(Masters, FollowParametersThatTheScriptChanges) {
  const auto parameter = torch::ones({3}, torch::TensorOptions(GetParam())).requires_grad_();
  MasterWeights masters;
  const auto master = masters.add(parameter);
  const torch::NoGradGuard no_grad;
  master.sub_(torch::tensor({1e-5F, 1e-5F, 0.5F}));
  masters.write_back();
  const auto kept = master.clone();
  masters.follow_parameters();
  EXPECT_TRUE(master.equal(kept));
  parameter.copy_(torch::maximum(parameter, torch::full_like(parameter, 0.75))); // clamped
  masters.follow_parameters();
  EXPECT_TRUE(master.equal(torch::stack({kept[0], kept[1], torch::tensor(0.75F)})));
  masters.write_back();
  EXPECT_TRUE(parameter[2].equal(torch::tensor(0.75, torch::TensorOptions(GetParam()))));
}

// A loss scale is divided away once, in f32, and not again where the gradient is kept.
TEST_P(Masters, GradientsAreDividedByTheScale) {
  const auto parameter = torch::ones({2}, torch::TensorOptions(GetParam())).requires_grad_();
  MasterWeights masters;
  const auto master = masters.add(parameter);
  parameter.mutable_grad() = torch::full_like(parameter, 3.0);
  masters.take_gradients(1048576);
  const auto wanted = torch::full({2}, 3.0 / 1048576); // a subnormal number in f16
  EXPECT_TRUE(master.grad().equal(wanted));
  masters.keep_gradients();
  masters.take_gradients(1048576);
  EXPECT_TRUE(master.grad().equal(wanted));
}

// An allocator gives the address of a freed gradient to the next one, whose version is the same.
TEST_P(Masters, AKeptGradientIsNotTakenForItsSuccessor) {
  const auto parameter = torch::ones({64}, torch::TensorOptions(GetParam())).requires_grad_();
  MasterWeights masters;
  const auto master = masters.add(parameter);
  for (int step = 0; step < 32; ++step) {
    parameter.mutable_grad() = torch::full_like(parameter, step);
    masters.take_gradients();
    ASSERT_TRUE(master.grad().equal(parameter.grad().to(at::kFloat))) << "step " << step;
    masters.keep_gradients();
    parameter.mutable_grad() = at::Tensor(); // the optimizer's step was left out
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Masters, ::testing::Values(at::kBFloat16, at::kHalf));

TEST(MasterWeights, WiderParametersAreTheirOwn) {
  MasterWeights masters;
  for (const auto type : {at::kFloat, at::kDouble}) {
    const auto parameter = torch::ones({2}, torch::TensorOptions(type));
    EXPECT_TRUE(masters.add(parameter).is_same(parameter));
    EXPECT_TRUE(masters.of(parameter).is_same(parameter));
    parameter.mutable_grad() = torch::ones_like(parameter);
    masters.take_gradients();
    masters.write_back();
    EXPECT_TRUE(parameter.grad().defined()) << "not a master's to free";
  }
}

// A frozen parameter, or one that no loss reached: the optimizer passes over
// it, and a gradient of the step before does not come back.
TEST(MasterWeights, WithoutAGradientNothingMoves) {
  const auto parameter = torch::ones({2}, torch::TensorOptions(at::kBFloat16)).requires_grad_();
  MasterWeights masters;
  const auto master = masters.add(parameter);
  torch::optim::SGD optimizer({master}, torch::optim::SGDOptions(0.5).momentum(0.0));
  parameter.mutable_grad() = torch::ones_like(parameter);
  masters.take_gradients();
  parameter.mutable_grad() = at::Tensor();
  masters.take_gradients();
  EXPECT_FALSE(master.grad().defined());
  optimizer.step();
  masters.write_back();
  EXPECT_TRUE(parameter.equal(torch::ones_like(parameter)));
  const auto frozen = torch::ones({2}, torch::TensorOptions(at::kHalf));
  EXPECT_FALSE(masters.add(frozen).requires_grad());
}

} // namespace
} // namespace tessera::optim
