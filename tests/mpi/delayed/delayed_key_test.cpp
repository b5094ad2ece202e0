// The key delayed_parameter_initialization of a script: followed by a scope of the script, or a
// warning.
#include <cmath>

#include "tests/mpi/runtime/support.h"

namespace tessera::testing {
namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", nn::Linear(4, 8));
    second = register_module("second", nn::Linear(8, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return second(torch::tanh(first(x)));
  }
  nn::Linear first{nullptr};
  nn::Linear second{nullptr};
};
TESSERA_MODULE(Net);

/// What a script with the key writes to stderr; `scoped`: it follows the key.
std::string said(bool key, bool scoped) {
  ::testing::internal::CaptureStderr();
  {
    Config config;
    config.pipeline_parallel_degree = world_size();
    config.delayed_parameter_initialization = key;
    config.timeout_seconds = 60;
    init(config);
    const Ended ended;
    Net net{nullptr};
    {
      const delay_param_initialization delayed(
          scoped && config_in_force().delayed_parameter_initialization);
      net = Net();
    }
    EXPECT_EQ(net->first->weight.is_meta(), key && scoped);
    DistributedModel model(net);
    auto train_step = tessera::step([&](const torch::Tensor& x) {
      const auto loss = model(x).square().mean();
      model.backward(loss);
      return loss;
    });
    torch::manual_seed(3);
    const auto loss = train_step(torch::randn({6, 4})).reduce_mean();
    EXPECT_TRUE(std::isfinite(loss.item<double>()));
  }
  return ::testing::internal::GetCapturedStderr();
}

TEST(DelayedKey, AScriptFollowsItByAScopeOrIsWarned) {
  constexpr const char* kWarning = "delayed_parameter_initialization has no effect on the model";
  const auto warned = [&](bool key, bool scoped) {
    return said(key, scoped).find(kWarning) != std::string::npos;
  };
  int mine = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &mine);
  EXPECT_FALSE(warned(false, false));
  EXPECT_FALSE(warned(true, true));
  EXPECT_EQ(warned(true, false), mine == 0);
}

} // namespace
} // namespace tessera::testing
