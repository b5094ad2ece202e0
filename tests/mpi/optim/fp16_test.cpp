// The keys fp16 and bf16: training beside a single process, overflow on any rank, checkpoints.
#include <filesystem>

#include <unistd.h>

#include "tessera/context/context.h"
#include "tessera/half/operators.h"

#include "tests/mpi/optim/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int kUpdates = 4;
constexpr double kRate = 0.2;
constexpr double kRounding = 4e-3; // of f16 numbers that were added in another order

Config fp16_config(const Layout& layout) {
  Config config = config_of(layout);
  config.fp16 = true;
  return config;
}

torch::optim::SGD momentum_sgd(const std::vector<torch::Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(kRate).momentum(0.5));
}

const LossScaleOptions kDynamic{
    .dynamic_loss_scale = true,
    .dynamic_loss_args = {.init_scale = 1024, .scale_window = 2}};

struct Run {
  explicit Run(const LossScaleOptions& options = kDynamic)
      : model{made(7)},
        optimizer(momentum_sgd(model.parameters()), options),
        mine(part_of(batch_of(), data_size(), data_rank())),
        step(step_of(model)) {}

  double train() {
    optimizer.zero_grad();
    const double loss = step(mine.x, mine.y).reduce_mean().item<double>();
    optimizer.step();
    return loss;
  }
  TensorMap masters() const {
    TensorMap all;
    for (const auto& [name, tensor] : optimizer.updated_tensors()) {
      all[name] = tensor.detach().clone();
    }
    return all;
  }

  DistributedModel<Chain> model;
  DistributedOptimizer optimizer;
  Batch mine;
  decltype(step_of(std::declval<DistributedModel<Chain>&>())) step;
};

void expect_alike(double value, const std::string& what) {
  for (const double other : allgather(value, Group::kWorld)) {
    EXPECT_EQ(other, value) << what;
  }
}

struct Wanted {
  std::vector<double> losses;
  TensorMap state;
  std::vector<double> scales; // after each step
};

/// One process and nothing of the library's but the operators: f32 masters, gradients of scaled
/// losses in f16, a scale that doubles every second step.
Wanted reference(int slices) {
  half::support_processor();
  Chain chain = made(7);
  std::vector<torch::Tensor> masters;
  for (torch::Tensor& parameter : chain->parameters()) {
    masters.push_back(parameter.detach().clone().requires_grad_());
    parameter.set_data(parameter.detach().to(at::kHalf));
  }
  torch::optim::SGD optimizer = momentum_sgd(masters);
  Wanted wanted;
  double scale = 1024;
  for (int i = 0; i < kUpdates; ++i) {
    double sum = 0;
    for (int slice = 0; slice < slices; ++slice) {
      const Batch part = part_of(batch_of(), slices, slice);
      const auto y = chain(part.x.to(at::kHalf)).to(at::kFloat);
      const auto loss = (y - part.y).pow(2).mean();
      (loss * (scale / slices)).backward();
      sum += loss.item<double>() / slices;
    }
    wanted.losses.push_back(sum);
    const auto parameters = chain->parameters();
    for (std::size_t k = 0; k < masters.size(); ++k) {
      masters[k].mutable_grad() = parameters[k].grad().to(at::kFloat) / scale;
      parameters[k].mutable_grad() = {};
    }
    optimizer.step();
    const torch::NoGradGuard no_grad;
    for (std::size_t k = 0; k < masters.size(); ++k) {
      parameters[k].copy_(masters[k]);
    }
    scale *= i % 2 == 1 ? 2 : 1;
    wanted.scales.push_back(scale);
  }
  wanted.state = state_of(chain);
  return wanted;
}

TEST(Fp16, TrainsAsOneProcessDoes) {
  for (const Layout& layout : layouts()) {
    init(fp16_config(layout));
    const Ended ended;
    const Wanted wanted = reference(slices_of_world());
    ASSERT_LT(wanted.losses.back(), 0.8 * wanted.losses.front());
    Run run;
    EXPECT_EQ(run.model.converted_to(), at::kHalf);
    for (int i = 0; i < kUpdates; ++i) {
      double loss = 0;
      for (const double of_rank : allgather(run.train(), Group::kDP)) {
        loss += of_rank / dp_size();
      }
      EXPECT_NEAR(loss, wanted.losses[i], kRounding * wanted.losses[i]) << layout.text();
      EXPECT_EQ(run.optimizer.loss_scale(), wanted.scales[i]) << layout.text();
      EXPECT_FALSE(run.optimizer.overflow());
    }
    const TensorMap state = run.model.state_dict();
    EXPECT_EQ(state.begin()->second.scalar_type(), at::kHalf);
    expect_state(state, wanted.state, layout.text(), kRounding);
    for (const auto& [name, tensor] : state_of(made(7))) {
      EXPECT_GT(relative_error(state.at(name), tensor), 10 * kRounding) << name;
    }
    for (const auto& [name, tensor] : run.masters()) {
      EXPECT_EQ(tensor.scalar_type(), at::kFloat) << name;
    }
  }
}

/// What an overflow leaves behind, on every rank.
void expect_left_out(Run& run, const TensorMap& before, double scale, const std::string& what) {
  EXPECT_TRUE(run.optimizer.overflow()) << what;
  EXPECT_EQ(run.optimizer.loss_scale(), scale) << what;
  expect_alike(run.optimizer.loss_scale(), what);
  for (const auto& [name, tensor] : run.masters()) {
    EXPECT_TRUE(tensor.equal(before.at(name))) << what << ", " << name;
  }
  for (const auto& [name, tensor] : run.model.local_parameters()) {
    EXPECT_FALSE(tensor.grad().defined()) << what << ", " << name;
  }
}

// A number that is not finite on one rank, whichever it is: all leave the update out.
TEST(Fp16, AnOverflowOfOneRankIsOneOfAll) {
  for (const Layout& layout : layouts()) {
    init(fp16_config(layout));
    const Ended ended;
    Run run;
    run.train();
    double scale = run.optimizer.loss_scale();
    for (int planted = 0; planted < size(); ++planted) {
      const std::string what = str(layout.text(), ", rank ", planted);
      const TensorMap before = run.masters();
      run.optimizer.zero_grad();
      run.step(run.mine.x, run.mine.y);
      if (rank() == planted) {
        const auto parameters = run.model.local_parameters();
        ASSERT_FALSE(parameters.empty());
        torch::Tensor gradient = parameters.back().second.grad();
        gradient.view({-1})[0].fill_(std::numeric_limits<double>::infinity());
      }
      run.optimizer.step();
      scale /= 2;
      expect_left_out(run, before, scale, what);
    }
    run.train();
    EXPECT_FALSE(run.optimizer.overflow()) << layout.text();
  }
}

// Overflows as they come about: the first scale is too large for f16, and one replica's batch
// later.
TEST(Fp16, TheScaleFallsUntilGradientsFit) {
  for (const Layout& layout : layouts()) {
    init(fp16_config(layout));
    const Ended ended;
    Run run({.dynamic_loss_scale = true});

    int left_out = 0;
    do {
      run.train();
      left_out += run.optimizer.overflow() ? 1 : 0;
    } while (run.optimizer.overflow() && left_out < 40);
    EXPECT_GT(left_out, 5) << layout.text();
    EXPECT_LT(left_out, 40) << layout.text();
    EXPECT_EQ(run.optimizer.loss_scale(), std::ldexp(1.0, 32 - left_out));
    expect_alike(left_out, layout.text());
    const TensorMap masters = run.masters();
    const double scale = run.optimizer.loss_scale();
    run.optimizer.zero_grad();
    Batch far = run.mine;
    far.y = data_rank() == data_size() - 1 ? far.y * 1e30 : far.y;
    run.step(far.x, far.y);
    run.optimizer.step();
    expect_left_out(run, masters, scale / 2, layout.text());
  }
}

TEST(Fp16, AClosureMayOverflow) {
  init(fp16_config(layouts().back()));
  const Ended ended;
  Run run;
  run.train();
  const TensorMap before = run.masters();
  for (const double factor : {1e30, 1.0}) {
    const auto loss = run.optimizer.step([&] {
      run.optimizer.zero_grad();
      return run.step(run.mine.x, run.mine.y * factor).reduce_mean();
    });
    EXPECT_TRUE(loss.defined());
    expect_alike(run.optimizer.overflow(), "closure");
    if (factor > 1) {
      expect_left_out(run, before, 512, "closure");
    } else {
      EXPECT_FALSE(run.optimizer.overflow());
    }
  }
  double moved = 0;
  for (const auto& [name, tensor] : run.masters()) {
    moved += relative_error(tensor, before.at(name));
  }
  EXPECT_GT(moved, 1e-2);
}

/// L2 norm over the pipeline of what this rank holds.
double norm_of(const TensorMap& tensors) {
  double square = 0;
  for (const auto& [name, tensor] : tensors) {
    square += tensor.to(at::kDouble).pow(2).sum().item<double>();
  }
  double sum = 0;
  for (const double part : allgather(square, Group::kPP)) {
    sum += part;
  }
  return std::sqrt(sum);
}

// The norm is that of gradients without the scale; clipping twice, or with another of the two
// names, divides by it once.
TEST(Fp16, ClippingActsOnUnscaledMasters) {
  for (const Layout& layout : layouts()) {
    if (layout.tp > 1) {
      continue;
    }
    init(fp16_config(layout));
    const Ended ended;
    Run run;
    run.step(run.mine.x, run.mine.y);
    TensorMap gradients;
    for (const auto& [name, tensor] : run.model.local_parameters()) {
      gradients[name] = tensor.grad().to(at::kDouble) / 1024;
    }
    const double wanted = norm_of(gradients);
    EXPECT_NEAR(run.optimizer.clip_master_grads(1e9), wanted, 1e-5 * wanted) << layout.text();
    EXPECT_NEAR(run.optimizer.clip_grad_norm(0.01), wanted, 1e-5 * wanted) << layout.text();
    EXPECT_NEAR(run.optimizer.clip_master_grads(1), 0.01, 1e-6) << layout.text();
    for (const auto& [name, tensor] : run.model.local_parameters()) {
      EXPECT_TRUE((tensor.grad().to(at::kDouble) / 1024).equal(gradients.at(name))) << name;
    }
    TensorMap moved = run.masters();
    run.optimizer.step();
    for (const auto& [name, tensor] : run.masters()) {
      moved[name] = tensor - moved[name];
    }
    EXPECT_NEAR(norm_of(moved), 0.01 * kRate, 1e-4 * kRate) << layout.text();
    // An overflow goes through clipping.
    run.optimizer.zero_grad();
    run.step(run.mine.x, run.mine.y * 1e30);
    EXPECT_FALSE(std::isfinite(run.optimizer.clip_master_grads(1)));
    run.optimizer.step();
    EXPECT_TRUE(run.optimizer.overflow());
  }
}

// One folder for all ranks, removed by the first of them.
struct Fp16Folder {
  Fp16Folder() {
    int id = static_cast<int>(::getpid());
    MPI_Bcast(&id, 1, MPI_INT, 0, MPI_COMM_WORLD);
    path = fs::temp_directory_path() / str("tessera_fp16_", id);
  }
  ~Fp16Folder() {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
      fs::remove_all(path);
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
  Fp16Folder(const Fp16Folder&) = delete;
  Fp16Folder& operator=(const Fp16Folder&) = delete;
  fs::path path;
};

// Saved between an overflow that was forgiven and one that is not, and inside of a window: a run
// that goes on is the one that did not end, to the bit.
TEST(Fp16, ACheckpointHoldsTheScale) {
  const LossScaleOptions options{
      .dynamic_loss_scale = true,
      .dynamic_loss_args = {.init_scale = 1024, .scale_window = 3, .delayed_shift = 2}};
  const auto overflow = [](Run& run) {
    run.optimizer.zero_grad();
    run.step(run.mine.x, run.mine.y * 1e30);
    run.optimizer.step();
    EXPECT_TRUE(run.optimizer.overflow());
  };
  const auto finish = [&](Run& run) {
    run.train();
    overflow(run); // the scale falls
    run.train();
  };
  for (const Layout& layout : layouts()) {
    const Fp16Folder folder;
    Config config = fp16_config(layout);
    config.reproducible = true;
    TensorMap wanted;
    std::string states;
    {
      init(config);
      const Ended ended;
      Run run(options);
      run.train();
      overflow(run);
      run.train();
      EXPECT_EQ(run.optimizer.loss_scale(), 1024);
      tessera::save(run.model, run.optimizer, folder.path.string(), "cut");
      finish(run);
      EXPECT_EQ(run.optimizer.loss_scale(), 512);
      wanted = run.masters();
      states = run.optimizer.fp16_states();
    }
    init(config);
    const Ended ended;
    Run run(options);
    ASSERT_TRUE(tessera::load(run.model, run.optimizer, folder.path.string()));
    finish(run);
    EXPECT_EQ(run.optimizer.fp16_states(), states) << layout.text();
    for (const auto& [name, tensor] : run.masters()) {
      EXPECT_TRUE(tensor.equal(wanted.at(name))) << layout.text() << ", " << name;
    }
  }
}

TEST(Fp16, AStaticScale) {
  init(fp16_config(layouts().back()));
  const Ended ended;
  Run run({.static_loss_scale = 256});
  EXPECT_EQ(run.optimizer.loss_scale(), 256);
  const double first = run.train();
  run.train();
  EXPECT_LT(run.train(), first);
  run.optimizer.zero_grad();
  run.step(run.mine.x, run.mine.y * 1e30);
  run.optimizer.step();
  EXPECT_TRUE(run.optimizer.overflow());
  EXPECT_EQ(run.optimizer.loss_scale(), 256);
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

// A script that runs the backward itself multiplies by the scale itself.
TEST(Fp16, ABackwardOfTheScriptsOwn) {
  init(fp16_config(Layout{1, 1}));
  const Ended ended;
  const auto trained = [](bool own) {
    Run run;
    if (own) {
      const auto loss = (run.model(run.mine.x) - run.mine.y).pow(2).mean();
      (loss * run.optimizer.loss_scale()).backward();
      run.optimizer.step();
    } else {
      run.train();
    }
    return run.model.state_dict();
  };
  expect_state(trained(true), trained(false), "own backward", kRounding);
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
