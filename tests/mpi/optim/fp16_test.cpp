// The key fp16: training beside a single process, overflow on any rank, clipping.
#include "tessera/half/operators.h"

#include "tests/mpi/optim/fp16_support.h"

namespace tessera::testing {
namespace {

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
      parameters[k].mutable_grad() = torch::Tensor();
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
    ASSERT_LT(wanted.losses.back(), 0.9 * wanted.losses.front());
    HalfRun run;
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
      EXPECT_GT(relative_error(state.at(name), tensor), 5 * kRounding) << name;
    }
    for (const auto& [name, tensor] : run.masters()) {
      EXPECT_EQ(tensor.scalar_type(), at::kFloat) << name;
    }
  }
}

// A number that is not finite on one rank, whichever it is: all leave the update out.
TEST(Fp16, AnOverflowOfOneRankIsOneOfAll) {
  for (const Layout& layout : layouts()) {
    init(fp16_config(layout));
    const Ended ended;
    HalfRun run;
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
    HalfRun run({.dynamic_loss_scale = true});

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
  HalfRun run;
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
    HalfRun run;
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

TEST(Fp16, AStaticScale) {
  init(fp16_config(layouts().back()));
  const Ended ended;
  HalfRun run({.static_loss_scale = 256});
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

// A script that runs the backward itself multiplies by the scale itself.
TEST(Fp16, ABackwardOfTheScriptsOwn) {
  init(fp16_config(Layout{1, 1}));
  const Ended ended;
  const auto trained = [](bool own) {
    HalfRun run;
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

// Another model changes the set that the optimizer looks its parameters up in; what it steps on are
// masters by then.
TEST(Fp16, OtherModelsMayComeAndGo) {
  init(fp16_config(Layout{1, 1}));
  const Ended ended;
  const auto trained = [](bool others) {
    HalfRun run;
    run.train();
    auto other = others ? std::make_unique<DistributedModel<Chain>>(made(8)) : nullptr;
    run.train();
    other.reset();
    run.train();
    return run.masters();
  };
  const TensorMap wanted = trained(false);
  const TensorMap got = trained(true);
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    EXPECT_TRUE(got.at(name).equal(tensor)) << name;
    EXPECT_EQ(tensor.scalar_type(), at::kFloat) << name;
  }
}

} // namespace
} // namespace tessera::testing
