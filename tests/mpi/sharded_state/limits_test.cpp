// What cannot be shared out is refused with words that help.
#include "tessera/optim/lbfgs.h"

#include "tests/mpi/sharded_state/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

TEST(ShardedLimits, LbfgsIsRefused) {
  init(config_of(Strategy(), true));
  const Ended ended;
  DistributedModel model{made(7)};
  EXPECT_THAT(
      error_of<ConfigError>([&] { DistributedOptimizer(torch::optim::LBFGS(model.parameters())); }),
      HasSubstr("leave shard_optimizer_state out"));
}

/// Evaluates twice and keeps the second gradients.
struct Twice : torch::optim::SGD {
  using SGD::SGD;
  torch::Tensor step(LossClosure closure) override {
    closure();
    return SGD::step(closure);
  }
};

TEST(ShardedLimits, ASecondCallOfAClosureIsRefused) {
  init(config_of(Strategy(), true));
  const Ended ended;
  DistributedModel model{made(7)};
  DistributedOptimizer optimizer(Twice(model.parameters(), torch::optim::SGDOptions(0.1)));
  const Batch mine = part_of(batch_at(0), data_size(), data_rank());
  step_of(model)(mine.x, mine.y);
  EXPECT_THAT(
      error_of<UserError>([&] {
        optimizer.step([&] {
          optimizer.zero_grad();
          return step_of(model)(mine.x, mine.y).reduce_mean();
        });
      }),
      HasSubstr("without shard_optimizer_state"));
}

/// Fails on the rank that has something to update.
struct Failing : torch::optim::SGD {
  using SGD::SGD;
  torch::Tensor step(LossClosure /*closure*/ = nullptr) override {
    if (!param_groups().front().params().empty()) {
      throw std::runtime_error("the update failed");
    }
    return {};
  }
};

TEST(ShardedLimits, AnUpdateThatFailsOnOneRankFailsOnAll) {
  init(config_of(Strategy(), true));
  const Ended ended;
  DistributedModel model{made(7)};
  DistributedOptimizer optimizer(Failing({model.net()->a->weight}, torch::optim::SGDOptions(0.1)));
  const Batch mine = part_of(batch_at(0), data_size(), data_rank());
  step_of(model)(mine.x, mine.y);
  std::string error;
  try {
    optimizer.step();
  } catch (const std::exception& thrown) {
    error = thrown.what();
  }
  EXPECT_THAT(error, HasSubstr("the update failed"));
}

// Of no model: every rank updates its own.
TEST(ShardedLimits, ParametersOfNoModelStay) {
  init(config_of(Strategy(), true));
  const Ended ended;
  DistributedModel model{made(7)};
  torch::Tensor own = torch::ones({4}, torch::requires_grad());
  auto parameters = model.parameters();
  parameters.push_back(own);
  DistributedOptimizer optimizer(torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1)));
  const Batch mine = part_of(batch_at(0), data_size(), data_rank());
  step_of(model)(mine.x, mine.y);
  own.sum().backward();
  optimizer.step();
  EXPECT_TRUE(own.allclose(torch::full({4}, 0.9F)));
}

} // namespace
} // namespace tessera::testing
