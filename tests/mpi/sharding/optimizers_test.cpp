// What optimizers may do with parts of parameters, and 16-bit gradients on their way to them.
#include <optional>

#include "tests/mpi/sharding/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

torch::nn::Linear layer() {
  torch::manual_seed(7);
  return torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false));
}

// The sum of the ranks' gradients is out of the range of f16, and their average is in it.
TEST(Optimizers, Fp16GradientsMayHaveALargeSum) {
  constexpr double kScale = 40000;
  for (const bool by_step : {true, false}) {
    Config config = sharded(world_size());
    config.fp16 = true;
    init(config);
    const Ended ended;
    auto net = layer();
    {
      const torch::NoGradGuard no_grad;
      net->weight.fill_(0.25);
    }
    DistributedModel model(net);
    DistributedOptimizer optimizer(
        torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.125)),
        {.static_loss_scale = kScale});
    // Every element's gradient is 1.
    const auto loss_of = [&](const torch::Tensor& x) {
      return (model(x).to(torch::kFloat) - 0.25 * kWidth).sum();
    };
    auto step = tessera::step([&](torch::Tensor x) { model.backward(loss_of(x)); });
    const torch::Tensor x = torch::ones({1, kWidth});
    step(x);
    if (!by_step) {
      optimizer.zero_grad();
      (kScale * loss_of(x)).backward();
    }
    optimizer.step();
    EXPECT_FALSE(optimizer.overflow()) << by_step;
    const at::Tensor weight = model.state_dict().at("weight").to(torch::kFloat);
    EXPECT_TRUE(weight.allclose(torch::full_like(weight, 0.125), 0, 1e-3)) << by_step;
  }
}

/// A script's own optimizer, which throws on one rank where it is told to.
struct Own : torch::optim::SGD {
  using SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override {
    if (fails && rank() == 1) {
      throw std::runtime_error("planted in the update");
    }
    return SGD::step(closure);
  }
  bool fails = false;
};

TEST(Optimizers, AnErrorOfOneRankIsOneOfAll) {
  init(sharded(world_size()));
  const Ended ended;
  auto net = layer();
  DistributedModel model(net);
  auto own = std::make_unique<Own>(model.parameters(), torch::optim::SGDOptions(0.1));
  Own& inner = *own;
  DistributedOptimizer optimizer(std::move(own));
  auto step = tessera::step([&](torch::Tensor x) { model.backward(model(x).pow(2).mean()); });
  const torch::Tensor x = mine_of(random_batches(16)(0)).x;
  step(x);
  inner.fails = true;
  if (rank() == 1) {
    EXPECT_THROW(optimizer.step(), std::runtime_error);
  } else {
    EXPECT_THAT(
        error_of<UserError>([&] { optimizer.step(); }),
        AllOf(HasSubstr("rank 1: planted"), HasSubstr("parts of this rank's parameters")));
  }
  inner.fails = false; // and training goes on
  step(x);
  optimizer.step();
}

template <typename Optimizer>
std::string said_by() {
  ::testing::internal::CaptureStderr();
  {
    init(sharded(world_size()));
    const Ended ended;
    auto net = layer();
    DistributedModel model(net);
    DistributedOptimizer optimizer(
        std::make_unique<Optimizer>(model.parameters(), torch::optim::SGDOptions(0.1)));
    auto step = tessera::step([&](torch::Tensor x) { model.backward(model(x).pow(2).mean()); });
    for (int i = 0; i < 2; ++i) {
      step(mine_of(random_batches(16)(0)).x);
      optimizer.step();
    }
  }
  return ::testing::internal::GetCapturedStderr();
}

TEST(Optimizers, OfAnotherKindAreGivenPartsWithAWarning) {
  EXPECT_THAT(said_by<torch::optim::SGD>(), Not(HasSubstr("LARS")));
  const std::string said = said_by<Own>();
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) {
    EXPECT_THAT(said, AllOf(HasSubstr("Own"), HasSubstr("LARS")));
    EXPECT_EQ(said.find("LARS"), said.rfind("LARS")); // once
  } else {
    EXPECT_THAT(said, IsEmpty());
  }
}

// Its model was destroyed, and with it what holds the parts' gradients.
TEST(Optimizers, ZeroGradientsAfterAModelIsGone) {
  init(sharded(world_size()));
  const Ended ended;
  auto kept = layer();
  auto gone = layer();
  DistributedModel model(kept);
  std::optional<DistributedModel<torch::nn::Linear>> other(std::in_place, gone);
  auto parameters = model.parameters();
  for (const at::Tensor& parameter : other->parameters()) {
    parameters.push_back(parameter);
  }
  auto optimizer = sgd(parameters);
  auto both = tessera::step([&](torch::Tensor x) {
    const auto loss = (model(x) + (*other)(x)).pow(2).mean();
    model.backward(loss);
  });
  const torch::Tensor x = mine_of(random_batches(16)(0)).x;
  both(x);
  optimizer.step();
  other.reset();
  optimizer.zero_grad(/*set_to_none=*/true);
  EXPECT_FALSE(kept->weight.grad().defined());
  EXPECT_EQ(shards_of(model).parameters().list()[0].part.grad().defined(), false);
}

} // namespace
} // namespace tessera::testing
