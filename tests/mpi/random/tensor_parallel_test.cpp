// Masks of activations of distributed layers, to the bit, wherever they lie: whole, own samples,
// channels, blocks of a mesh.
#include "tests/mpi/random/support.h"
#include "tests/support/channel_dropper.h"

namespace tessera::testing {
namespace {

constexpr int kDividedRows = 24; // of the batch of all replicas
constexpr int kChannels = 7; // neither two nor four ranks divide them
constexpr double kDividedProbability = 0.5;

struct TwoDroppersImpl : torch::nn::Module {
  TwoDroppersImpl() {
    weight = register_parameter("weight", torch::ones({kChannels}));
    const tensor_parallelism marked;
    first = register_module("first", ChannelDropper(kChannels, kDividedProbability));
    second = register_module("second", ChannelDropper(kChannels, kDividedProbability));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return second(torch::dropout(first(x * weight), kDividedProbability, is_training()));
  }
  torch::Tensor weight;
  ChannelDropper first{nullptr}, second{nullptr};
};
TESSERA_MODULE(TwoDroppers);

torch::Tensor plain_divided(int step) {
  TwoDroppers net;
  const random::StreamScope scope(plain_stream(step));
  return net(torch::ones({kDividedRows, 3, kChannels})).detach();
}

void expect_divided(Config config, int tp, const std::string& placement) {
  config.tensor_parallel_degree = tp;
  config.placement_strategy = placement;
  init(independent(config));
  const Ended ended;
  DistributedModel model{TwoDroppers()};
  auto run = tessera::step([&](torch::Tensor x) {
    auto out = model(x);
    model.backward(out.sum());
    return out;
  });
  for (int step = 0; step < 2; ++step) {
    const auto rows = kDividedRows / data_size();
    const auto out = run(torch::ones({rows, 3, kChannels})).concat();
    EXPECT_TRUE(out.equal(plain_divided(step).narrow(0, data_rank() * rows, rows)))
        << "step " << step << ", tp " << tp << " of " << world_size() << ", microbatches "
        << config.microbatches << ", " << config.tensor_parallel_kind << " " << config.optimize
        << " " << config.prescaled_batch << ", " << placement;
  }
}

TEST(DividedMasks, AreThoseOfOneProcess) {
  for (const int tp : {1, 2, 4}) {
    if (tp > world_size()) {
      continue;
    }
    for (const int microbatches : {1, 2}) {
      for (const bool prescaled : {false, true}) {
        Config config = config_of(1, microbatches);
        config.prescaled_batch = prescaled;
        for (const char* optimize : {"speed", "memory"}) {
          config.optimize = optimize;
          expect_divided(config, tp, "cluster");
        }
        if (tp > 1) {
          config.optimize = "speed";
          config.tensor_parallel_kind = "2d";
          expect_divided(config, tp, "cluster");
        }
      }
    }
  }
}

// The ranks of a TP_GROUP need not follow one another.
TEST(DividedMasks, FollowTheDataRanksWhereverTheyLie) {
  if (world_size() < 4) {
    GTEST_SKIP() << "needs two groups of two";
  }
  for (const char* placement : {"DPT", "TPD"}) {
    Config config = config_of(1, 2);
    config.optimize = "memory";
    expect_divided(config, 2, placement);
    config.tensor_parallel_kind = "2d";
    expect_divided(config, 2, placement);
  }
}

} // namespace
} // namespace tessera::testing
