// The keys fp16, bf16 and fp16_params: checkpoints, errors, what models are given and give back.
#include "tests/mpi/optim/fp16_support.h"
#include "tests/support/shared_folder.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

// Saved between an overflow that was forgiven and one that is not, and inside of a window: a run
// that goes on is the one that did not end, to the bit.
TEST(Fp16, ACheckpointHoldsTheScale) {
  const LossScaleOptions options{
      .dynamic_loss_scale = true,
      .dynamic_loss_args = {.init_scale = 1024, .scale_window = 3, .delayed_shift = 2}};
  const auto overflow = [](HalfRun& run) {
    run.optimizer.zero_grad();
    run.step(run.mine.x, run.mine.y * 1e30);
    run.optimizer.step();
    EXPECT_TRUE(run.optimizer.overflow());
  };
  const auto finish = [&](HalfRun& run) {
    run.train();
    overflow(run); // the scale falls
    run.train();
  };
  for (const Layout& layout : layouts()) {
    const SharedFolder folder;
    Config config = fp16_config(layout);
    config.reproducible = true;
    TensorMap wanted;
    std::string states;
    {
      init(config);
      const Ended ended;
      HalfRun run(options);
      run.train();
      overflow(run);
      run.train();
      EXPECT_EQ(run.optimizer.loss_scale(), 1024);
      tessera::save(run.model, run.optimizer, folder.path(), "cut");
      finish(run);
      EXPECT_EQ(run.optimizer.loss_scale(), 512);
      wanted = run.masters();
      states = run.optimizer.fp16_states();
    }
    init(config);
    const Ended ended;
    HalfRun run(options);
    ASSERT_TRUE(tessera::load(run.model, run.optimizer, folder.path()));
    finish(run);
    EXPECT_EQ(run.optimizer.fp16_states(), states) << layout.text();
    for (const auto& [name, tensor] : run.masters()) {
      EXPECT_TRUE(tensor.equal(wanted.at(name))) << layout.text() << ", " << name;
    }
  }
}

TEST(Fp16, SaysWhatToWrite) {
  {
    init(config_of(layouts().back()));
    const Ended ended;
    DistributedModel model{made(7)};
    for (const LossScaleOptions& options :
         {LossScaleOptions{.static_loss_scale = 2},
          LossScaleOptions{.dynamic_loss_scale = true},
          LossScaleOptions{.dynamic_loss_args = {.init_scale = 2}}}) {
      EXPECT_THAT(
          error_of<ConfigError>(
              [&] { DistributedOptimizer(momentum_sgd(model.parameters()), options); }),
          HasSubstr("\"fp16\": true"));
    }
    DistributedOptimizer plain(momentum_sgd(model.parameters()));
    EXPECT_EQ(plain.loss_scale(), 1);
    EXPECT_FALSE(plain.overflow());
    EXPECT_EQ(plain.fp16_states(), "");
  }
  init(fp16_config(layouts().back()));
  const Ended ended;
  DistributedModel model{made(7)};
  const auto error_with = [&](const LossScaleOptions& options) {
    return error_of<ConfigError>(
        [&] { DistributedOptimizer(momentum_sgd(model.parameters()), options); });
  };
  EXPECT_THAT(
      error_with({.static_loss_scale = 2, .dynamic_loss_scale = true}), HasSubstr("keep one"));
  EXPECT_THAT(
      error_with({.dynamic_loss_args = {.init_scale = 2}}), HasSubstr("dynamic_loss_scale = true"));
  EXPECT_THAT(
      error_with({.dynamic_loss_scale = true, .dynamic_loss_args = {.scale_factor = 0.5}}),
      HasSubstr("scale_factor is 0.5"));
  EXPECT_THAT(
      error_of<ConfigError>([&] { DistributedOptimizer(torch::optim::LBFGS(model.parameters())); }),
      HasSubstr("LBFGS does not work with fp16"));
  // The scale of another optimizer.
  DistributedOptimizer first(momentum_sgd(model.parameters()), kDynamic);
  auto train_step = step_of(model);
  const Batch mine = part_of(batch_of(), data_size(), data_rank());
  {
    DistributedOptimizer second(momentum_sgd(model.parameters()), kDynamic);
    train_step(mine.x, mine.y);
    EXPECT_THAT(
        error_of<ConfigError>([&] { first.step(); }), HasSubstr("one DistributedOptimizer"));
  }
  first.step(); // the other one has ended
  // A parameter that no model has.
  DistributedOptimizer odd(momentum_sgd({torch::ones({3, 5}).requires_grad_()}), kDynamic);
  EXPECT_THAT(error_of<ConfigError>([&] { odd.step(); }), HasSubstr("shape [3, 5]"));
}

TEST(Bf16, TrainsAsAScriptThatConvertsItself) {
  const auto trained = [](bool key) {
    Config config = config_of(layouts().back());
    config.bf16 = key;
    init(config);
    const Ended ended;
    DistributedModel model{made(7, key ? at::kFloat : at::kBFloat16)};
    DistributedOptimizer optimizer(momentum_sgd(model.parameters()));
    const Batch mine = part_of(batch_of(), data_size(), data_rank());
    const auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
      const auto out = key ? model(x) : model(x.to(at::kBFloat16)).to(at::kFloat);
      EXPECT_EQ(out.scalar_type(), at::kFloat);
      const auto loss = (out - y).pow(2).mean();
      model.backward(loss);
      return loss;
    });
    for (int i = 0; i < kUpdates; ++i) {
      optimizer.zero_grad();
      train_step(mine.x, mine.y);
      optimizer.step();
    }
    EXPECT_EQ(optimizer.fp16_states(), "");
    return model.state_dict();
  };
  const TensorMap wanted = trained(false);
  const TensorMap got = trained(true);
  for (const auto& [name, tensor] : wanted) {
    EXPECT_EQ(got.at(name).scalar_type(), at::kBFloat16);
    EXPECT_TRUE(got.at(name).equal(tensor)) << name;
  }
}

/// The chain whose marked layers are given f16, whatever the others are.
struct HalfInsideImpl : torch::nn::Module {
  HalfInsideImpl() {
    chain = register_module("chain", made(7));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto type = config_in_force().fp16_params ? at::kHalf : at::kFloat;
    const auto y = chain->c(torch::tanh(chain->b(torch::tanh(chain->a(x)).to(type))));
    return chain->d(torch::tanh(y.to(at::kFloat)));
  }
  Chain chain{nullptr};
};
TESSERA_MODULE(HalfInside);

// With fp16_params distributed modules alone are in f16, and have masters.
TEST(Fp16Params, AreThoseOfDistributedModules) {
  if (world_size() == 1) {
    return; // no tensor parallelism
  }
  const Layout layout{1, 2};
  const auto trained = [&](bool key, bool f32_sums) {
    Config config = config_of(layout);
    config.fp16_params = key;
    config.fp32_grad_accumulation = f32_sums;
    init(config);
    const Ended ended;
    DistributedModel model{HalfInside()};
    EXPECT_FALSE(model.converted_to());
    DistributedOptimizer optimizer(momentum_sgd(model.parameters()));
    const Batch mine = part_of(batch_of(), data_size(), data_rank());
    const auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
      const auto loss = (model(x) - y).pow(2).mean();
      model.backward(loss);
    });
    for (int i = 0; i < kUpdates; ++i) {
      optimizer.zero_grad();
      train_step(mine.x, mine.y);
      optimizer.step();
    }
    int halves = 0;
    for (const auto& [name, tensor] : model.local_parameters()) {
      const bool inside =
          name.find(".b.") != std::string::npos || name.find(".c.") != std::string::npos;
      EXPECT_EQ(tensor.scalar_type(), key && inside ? at::kHalf : at::kFloat) << name;
      EXPECT_EQ(optim::OptimizerAccess::updated_tensor(optimizer, tensor).scalar_type(), at::kFloat)
          << name;
      EXPECT_EQ(tensor.grad().scalar_type(), f32_sums ? at::kFloat : tensor.scalar_type()) << name;
      halves += tensor.scalar_type() == at::kHalf ? 1 : 0;
    }
    EXPECT_EQ(halves > 0, key);
    return model.state_dict();
  };
  const TensorMap wanted = trained(false, false);
  expect_state(trained(true, false), wanted, "fp16_params", kRounding);
  expect_state(trained(true, true), wanted, "fp16_params, sums in f32", kRounding);
}

/// Lists, counts and variables of the caller's.
struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    a = register_module("a", nn::Linear(kWidth, kWidth));
    norm = register_module("norm", torch::nn::BatchNorm1d(kWidth));
  }
  std::tuple<torch::Tensor, std::vector<torch::Tensor>, std::int64_t>
  forward(const std::vector<torch::Tensor>& inputs, std::int64_t times, torch::Tensor& last) {
    EXPECT_EQ(inputs.at(0).scalar_type(), at::kHalf);
    EXPECT_EQ(inputs.at(1).scalar_type(), at::kLong);
    EXPECT_EQ(last.scalar_type(), at::kHalf);
    const auto y = norm(a(inputs.at(0))) * static_cast<double>(times) + last;
    last = y.detach();
    return {y, {inputs.at(1), y}, times};
  }
  nn::Linear a{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TESSERA_MODULE(Mixed);

TEST(Fp16, WhatAModelIsGivenAndGivesBack) {
  Config config = config_of(Layout{1, 1});
  config.fp16 = true;
  init(config);
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model{Mixed()};
  EXPECT_EQ(model.net()->norm->running_mean.scalar_type(), at::kHalf);
  EXPECT_EQ(model.net()->norm->num_batches_tracked.scalar_type(), at::kLong);
  torch::Tensor last = torch::ones({4, kWidth}, at::kDouble);
  const torch::Tensor counts = torch::ones({2}, at::kLong);
  const auto [y, list, times] =
      model(std::vector<torch::Tensor>{torch::randn({4, kWidth}), counts}, std::int64_t{3}, last);
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  EXPECT_EQ(list.at(0).scalar_type(), at::kLong);
  EXPECT_EQ(list.at(1).scalar_type(), at::kFloat);
  EXPECT_EQ(times, 3);
  EXPECT_EQ(last.scalar_type(), at::kFloat);
  EXPECT_TRUE(last.equal(y.detach()));
}

} // namespace
} // namespace tessera::testing
