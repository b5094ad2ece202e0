// What cannot be done right is an error on every rank, and the script may go on.
#include <filesystem>

#include <unistd.h>

#include <gmock/gmock.h>

#include "tests/mpi/several_models/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

TEST(Refused, ASharedModule) {
  init(config_of(std::min(2, world_size()), 1));
  const Ended ended;
  Stack net;
  const DistributedModel whole(net);
  EXPECT_THAT(
      error_of<ConfigError>([&] { const DistributedModel head(net->out); }),
      HasSubstr("is part of the model 'Stack' too"));
  EXPECT_THAT(
      error_of<ConfigError>([&] { const DistributedModel again(net); }),
      HasSubstr("put what they share into one model"));
}

TEST(Refused, ModulesOfAModelThatIsGone) {
  if (world_size() < 2) {
    GTEST_SKIP() << "one rank keeps everything";
  }
  init(config_of(2, 1));
  const Ended ended;
  Stack net;
  {
    const DistributedModel first(net);
    const Batch mine = mine_of(batch_of(0));
    tessera::step([&](torch::Tensor x) { return first(x); })(mine.x);
  }
  EXPECT_THAT(
      error_of<ConfigError>([&] { const DistributedModel second(net); }),
      HasSubstr("was divided over pipeline ranks"));
}

// The trace runs the first microbatch only. The step fails on every rank, and
// works when it is called again.
TEST(Refused, AFirstCallInALaterMicrobatch) {
  if (world_size() < 2) {
    GTEST_SKIP() << "one rank partitions nothing";
  }
  init(config_of(2, 2));
  const Ended ended;
  torch::manual_seed(7);
  const DistributedModel always{Stack()};
  const DistributedModel rarely{Stack()};
  torch::Tensor x = torch::ones({4, kWidth});
  x.narrow(0, 2, 2).fill_(-1); // the second microbatch
  const auto forward = tessera::step([&](torch::Tensor in) {
    auto out = always(in);
    return in.sum().template item<float>() < 0 ? rarely(out) : out;
  });
  const std::string text = error_of<UserError>([&] { forward(x); });
  EXPECT_THAT(text, HasSubstr("model 'Stack 2' was called"));
  EXPECT_THAT(text, HasSubstr("microbatch 1"));
  EXPECT_THAT(text, HasSubstr("call the step again"));
  EXPECT_EQ(forward(x).concat().size(0), 4);
  EXPECT_TRUE(rarely.partitioned());
}

TEST(Refused, StateAndCheckpointOfAnOptimizerOverSeveralModels) {
  init(config_of(1, 1));
  const Ended ended;
  const DistributedModel left{Stack()};
  ModelOptions named;
  named.name = "right";
  const DistributedModel right(Stack(), named);
  std::vector<torch::Tensor> all = left.parameters();
  for (const auto& parameter : right.parameters()) {
    all.push_back(parameter);
  }
  auto both = sgd(all);
  EXPECT_THAT(
      error_of<CheckpointError>([&] { both.state_dict(); }),
      HasSubstr("parameters of the models 'Stack', 'right'"));
  const std::string folder = broadcast(
      std::filesystem::temp_directory_path().string() + "/tessera_several_" +
      std::to_string(::getpid()));
  auto of_left = sgd(left.parameters());
  auto of_right = sgd(right.parameters());
  EXPECT_THAT(
      error_of<CheckpointError>([&] { save(left, of_right, folder, "a"); }),
      HasSubstr("the parameters of the model 'right', the model given is 'Stack'"));
  save(left, of_left, folder, "a");
  EXPECT_THAT(
      error_of<CheckpointError>([&] { save(right, of_right, folder + "/", "b"); }),
      HasSubstr("holds checkpoints of the model 'Stack'"));
  save(right, of_right, folder + "/right", "a");
  EXPECT_TRUE(load(right, of_right, folder + "/right").has_value());
  barrier();
  if (rank() == 0) {
    std::filesystem::remove_all(folder);
  }
}

} // namespace
} // namespace tessera::testing
