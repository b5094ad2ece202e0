// Ranks that hold several stages of a pipeline in turns, so that the first task of the last rank
// waits for a fraction of the model only.
#include <gmock/gmock.h>

#include "tessera/context/context.h"
#include "tessera/timeline/timeline.h"

#include "tests/mpi/order/support.h"

namespace tessera::testing {
namespace {

constexpr int kInFlight = 4;
constexpr int kTrainedSteps = 3;

struct EightStagesImpl : torch::nn::Module {
  EightStagesImpl() {
    for (int i = 0; i < kStages; ++i) {
      stages->push_back(Block());
    }
    register_module("stages", stages);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return stages(x);
  }
  static constexpr int kStages = 8;
  nn::Sequential stages;
};
TESSERA_MODULE(EightStages);

Config in_turns(const std::string& pipeline) {
  const int pp = world_size();
  std::map<std::string, int> partition;
  for (int i = 0; i < EightStagesImpl::kStages; ++i) {
    partition[str("stages.", i)] = i % pp;
  }
  Config config = placed(pp, kInFlight, partition);
  config.pipeline = pipeline;
  return config;
}

TEST(VirtualStages, InTurnsTrainLikeOneProcess) {
  const auto make_net = [] { return EightStages(); };
  const Trained wanted = train_plain(make_net, random_batches(), kTrainedSteps, kInFlight);
  for (const char* pipeline : {"simple", "interleaved"}) {
    const Trained got =
        train_distributed(in_turns(pipeline), make_net, random_batches(), kTrainedSteps);
    expect_equal(got, wanted, pipeline);
  }
}

TEST(VirtualStages, AMicrobatchComesToARankOnceForEachOfItsStages) {
  init(in_turns("interleaved"));
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model{EightStages()};
  auto train_step = tessera::step([&](torch::Tensor x) {
    auto loss = model(x).pow(2).mean();
    model.backward(loss);
  });
  const torch::Tensor x = torch::ones({kInFlight, kWidth});
  train_step(x); // traces and partitions
  barrier();
  context().recorder->enable(true);
  train_step(x);
  const auto events = context().recorder->take();
  const auto tasks = [&](const std::string& category) {
    return std::count_if(events.begin(), events.end(), [&](const auto& event) {
      return event.category == category && event.name.find("stages.") != std::string::npos;
    });
  };
  const int stages = EightStagesImpl::kStages / world_size();
  if (pp_rank() > 0) {
    EXPECT_EQ(tasks("forward"), kInFlight * stages);
    EXPECT_EQ(tasks("backward"), kInFlight * stages);
  }
}

} // namespace
} // namespace tessera::testing
