// What a script does on one rank alone, such as rank 0, is an error where it makes ranks unlike.
#include <gmock/gmock.h>

#include "tests/mpi/step_edges/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

enum class Unlike { kNothing, kRate, kOption, kUpdates, kMode };

// Trains two steps, is unlike on the last rank, and returns the error of the third; "" without one.
// Steps of a job are counted on from one model to the next.
std::string error_of_third_step(Unlike unlike) {
  DistributedModel model{made_chain()};
  DistributedOptimizer optimizer(
      torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.25)));
  auto train = tessera::step([&](torch::Tensor x) {
    auto loss = model(x).square().mean();
    model.backward(loss);
    return loss;
  });
  for (int i = 0; i < 2; ++i) {
    optimizer.zero_grad();
    train(some_rows());
    optimizer.step();
  }
  if (rank() == world_size() - 1) {
    if (unlike == Unlike::kRate) {
      optimizer.param_groups().front().options().set_lr(0.5);
    } else if (unlike == Unlike::kOption) {
      auto& options = optimizer.param_groups().front().options();
      static_cast<torch::optim::SGDOptions&>(options).weight_decay(0.1);
    } else if (unlike == Unlike::kUpdates) {
      optimizer.step();
    } else if (unlike == Unlike::kMode) {
      model.net()->eval();
    }
  }
  try {
    train(some_rows());
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(UnlikeRanks, ReplicasWithAnotherLearningRateAreAnErrorOnAll) {
  if (world_size() == 1) {
    return;
  }
  init(chain_config(1, 2));
  const Ended ended;
  EXPECT_EQ(error_of_third_step(Unlike::kNothing), "");
  const std::string error = error_of_third_step(Unlike::kRate);
  EXPECT_THAT(error, HasSubstr("rank 0 has made 2 updates and has the learning rate 0.25"));
  EXPECT_THAT(
      error,
      HasSubstr(
          str("rank ", world_size() - 1, " has made 2 updates and has the learning rate 0.5")));
  EXPECT_THAT(error, HasSubstr("in step 5 "));
  const std::string option = error_of_third_step(Unlike::kOption);
  EXPECT_THAT(option, HasSubstr("weight_decay 0 on rank 0 and "));
  EXPECT_THAT(option, HasSubstr(str("weight_decay 0.1 on rank ", world_size() - 1, ";")));
}

TEST(UnlikeRanks, ReplicasInAnotherModeAreAnErrorOnAll) {
  if (world_size() == 1) {
    return;
  }
  init(chain_config(1, 2));
  const Ended ended;
  EXPECT_THAT(
      error_of_third_step(Unlike::kMode), HasSubstr("in training mode on one of the ranks"));
}

TEST(UnlikeRanks, OneThatUpdatesMoreOftenThanItsPipelineSaysSo) {
  if (world_size() == 1) {
    return;
  }
  for (const Unlike unlike : {Unlike::kNothing, Unlike::kRate, Unlike::kOption, Unlike::kUpdates}) {
    init(chain_config(world_size(), 2));
    const Ended ended;
    const std::string error = error_of_third_step(unlike);
    const bool here = rank() == world_size() - 1 && unlike != Unlike::kNothing;
    EXPECT_EQ(error != "", here) << error;
    if (here && unlike == Unlike::kOption) {
      EXPECT_THAT(error, HasSubstr("weight_decay 0.1 on rank"));
    } else if (here) {
      EXPECT_THAT(error, HasSubstr("rank 0 has made 2 updates and has the learning rate 0.25"));
      EXPECT_THAT(error, HasSubstr(unlike == Unlike::kRate ? "rate 0.5" : "has made 3 updates"));
    }
  }
}

} // namespace
} // namespace tessera::testing
