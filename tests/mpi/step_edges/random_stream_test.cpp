// With one microbatch and one replica a step draws what the plain script draws, and the script goes
// on from there on every rank.
#include "tests/mpi/step_edges/support.h"

namespace tessera::testing {
namespace {

struct NoisyImpl : torch::nn::Module {
  NoisyImpl() {
    block = register_module("block", Block());
    drop = register_module("drop", nn::Dropout(0.3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    // An odd number of values: the generator keeps half of a pair for the next draw.
    return drop(block(x)) + 0.1 * torch::randn({1}, torch::kDouble).to(torch::kFloat);
  }
  Block block{nullptr};
  nn::Dropout drop{nullptr};
};
TESSERA_MODULE(Noisy);

struct NoisyNetImpl : torch::nn::Module {
  NoisyNetImpl() {
    a = register_module("a", Noisy());
    b = register_module("b", Noisy());
    c = register_module("c", Noisy());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    // b is called twice, and calls go from rank to rank in between.
    return c(b(a(x)) + torch::randn_like(x)) + b(x);
  }
  Noisy a{nullptr}, b{nullptr}, c{nullptr};
};
TESSERA_MODULE(NoisyNet);

struct Drawn {
  std::vector<double> losses;
  std::vector<torch::Tensor> between; // what the script draws after each step
};

template <typename Step>
Drawn run(const Step& step, int steps) {
  Drawn drawn;
  for (int i = 0; i < steps; ++i) {
    drawn.losses.push_back(step(torch::randn({4, kWidth})));
    drawn.between.push_back(torch::randn({3}));
  }
  return drawn;
}

void expect_same(const Drawn& got, const Drawn& wanted) {
  for (std::size_t i = 0; i < wanted.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], wanted.losses[i], 1e-5 * std::abs(wanted.losses[i])) << i;
    EXPECT_TRUE(got.between[i].equal(wanted.between[i])) << i;
  }
}

TEST(RandomStream, AStepDrawsWhatThePlainScriptDraws) {
  const int pp = world_size(); // one replica
  torch::manual_seed(11);
  NoisyNet plain;
  torch::optim::SGD plain_optimizer(plain->parameters(), 0.1);
  const auto loss_of = [](const auto& net, const torch::Tensor& x) {
    return torch::dropout(net(x), 0.2, /*train=*/true).pow(2).mean();
  };
  const Drawn wanted = run(
      [&](const torch::Tensor& x) {
        plain_optimizer.zero_grad();
        auto loss = loss_of(plain, x);
        loss.backward();
        plain_optimizer.step();
        return loss.template item<double>();
      },
      3);

  for (const bool traced : {true, false}) {
    if (traced && pp > 3) {
      continue; // more ranks than modules
    }
    SCOPED_TRACE(traced);
    Config config = traced ? config_of(pp, 1)
                           : placed(pp, 1, {{"a", pp - 1}, {"b", pp / 2}, {"c", pp > 2 ? 1 : 0}});
    init(config);
    const Ended ended;
    torch::manual_seed(11);
    DistributedModel model{NoisyNet()};
    DistributedOptimizer optimizer(torch::optim::SGD(model.parameters(), 0.1));
    auto train_step = tessera::step([&](torch::Tensor x) {
      auto loss = loss_of(model, x);
      model.backward(loss);
      return loss;
    });
    const auto step = [&](const torch::Tensor& x) {
      optimizer.zero_grad();
      const double loss = train_step(x).reduce_mean().item<double>();
      optimizer.step();
      return loss;
    };
    expect_same(run(step, 3), wanted);
  }
}

TEST(RandomStream, ARankWhoseStreamStoodElsewhereIsBroughtAlong) {
  init(placed(world_size(), 1, {{"b", world_size() - 1}}));
  const Ended ended;
  torch::manual_seed(11);
  DistributedModel model{NoisyNet()};
  auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
  const torch::NoGradGuard no_grad;
  torch::manual_seed(20 + rank());
  const auto x = torch::ones({4, kWidth});
  forward(x);
  const auto all = allgather(torch::randn({3}), Group::kWorld);
  for (const auto& theirs : all) {
    EXPECT_TRUE(theirs.equal(all[0]));
  }
}

TEST(RandomStream, AFailedStepLeavesItWhereItWas) {
  init(placed(world_size(), 1, {{"b", world_size() - 1}}));
  const Ended ended;
  torch::manual_seed(11);
  DistributedModel model{NoisyNet()};
  auto broken = tessera::step([&](torch::Tensor x) {
    model(x);
    throw std::runtime_error("planted fault");
    return x;
  });
  torch::manual_seed(12);
  const auto wanted = torch::randn({3});
  torch::manual_seed(12);
  EXPECT_FALSE(error_of<UserError>([&] { broken(torch::ones({4, kWidth})); }).empty());
  EXPECT_TRUE(torch::randn({3}).equal(wanted));
}

} // namespace
} // namespace tessera::testing
