// Buckets of gradients are as large as the key says, and a rank holds one at a time.
#include <chrono>
#include <thread>

#include <c10/util/ThreadLocalDebugInfo.h>

#include "tests/mpi/sharding/support.h"
#include "tests/support/live_bytes.h"

namespace tessera::testing {
namespace {

constexpr int kLayers = 5;

/// Layers of one matrix each.
torch::nn::Sequential layers(int side, int count) {
  torch::manual_seed(7);
  torch::nn::Sequential net;
  for (int i = 0; i < count; ++i) {
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(side, side).bias(false)));
  }
  return net;
}

/// Steps of a model of such layers in one bucket or several; what the last one did.
struct Seen {
  std::int64_t collectives = 0; // in the shard group
  std::int64_t bytes = 0; // at the highest, beside what was there
};

/// With `behind` all ranks but the first begin it later.
Seen last_step(int side, std::int64_t bucket, int count = kLayers, bool behind = false) {
  Config config = sharded(world_size());
  config.sdp_reduce_bucket_size = bucket;
  init(config);
  const Ended ended;
  DistributedModel model(layers(side, count));
  auto optimizer = sgd(model.parameters());
  auto step = tessera::step([&](torch::Tensor x) {
    if (behind && rank() > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
    }
    model.backward(model(x).pow(2).mean());
  });
  const comm::Traffic& traffic = shards_of(model).group().traffic();
  const torch::Tensor x = torch::ones({1, side});
  std::int64_t before = 0;
  const auto live = std::make_shared<LiveBytes>();
  for (int i = 0; i < 3; ++i) {
    optimizer.zero_grad(/*set_to_none=*/true);
    *live = LiveBytes();
    before = traffic.calls.load();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
    step(x);
  }
  return {traffic.calls.load() - before, live->highest};
}

TEST(Buckets, HoldMoreThanAMillionElements) {
  constexpr int kSide = 500;
  const std::int64_t layer = kSide * kSide;
  const std::int64_t one = last_step(kSide, kLayers * layer).collectives;
  EXPECT_EQ(last_step(kSide, kLayers * layer - 1).collectives, one + 1);
  EXPECT_EQ(last_step(kSide, 3 * layer).collectives, one + 1);
  EXPECT_EQ(last_step(kSide, 1).collectives, one + kLayers - 1);
}

// The bucket, the gradient of the layer whose backward runs, and what has arrived of this rank's
// part, twice: as it arrives, and in the sum.
TEST(Buckets, AreAllThatARankHoldsOfWholeGradients) {
  constexpr int kSide = 256;
  const std::int64_t layer = kSide * kSide * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t all = kLayers * layer;
  const std::int64_t highest = last_step(kSide, 500'000'000).bytes;
  EXPECT_GE(highest, all);
  EXPECT_LE(highest, all + layer + 2 * all / world_size() + layer / 4);
}

// A rank holds gradients and what has arrived of its parts, and nothing twice.
TEST(Buckets, OfAMegabyteAreOneGradientThatIsNotCopied) {
  constexpr int kSide = 512;
  const std::int64_t layer = kSide * kSide * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t small = last_step(kSide / 2, 500'000'000).collectives; // in one bucket
  const Seen large = last_step(kSide, 500'000'000);
  EXPECT_EQ(large.collectives, small + kLayers - 1);
  EXPECT_EQ(last_step(kSide, 1).collectives, large.collectives);
  EXPECT_EQ(last_step(kSide - 4, 500'000'000).collectives, small); // less than a megabyte each
  EXPECT_LE(large.bytes, kLayers * layer + kLayers * layer / world_size() + layer / 4);
}

// A rank that is ahead does not collect the gradients of its whole backward: two buckets are on
// their way with their parts, beside the gradient that is computed and the parts that have arrived.
TEST(Buckets, OfARankThatIsAheadAreTwoAtATime) {
  constexpr int kSide = 512;
  constexpr int kMany = 12;
  const std::int64_t layer = kSide * kSide * static_cast<std::int64_t>(sizeof(float));
  const Seen seen = last_step(kSide, 500'000'000, kMany, /*behind=*/true);
  EXPECT_LE(
      seen.bytes, 3 * layer + 2 * layer / world_size() + kMany * layer / world_size() + layer / 4);
}

} // namespace
} // namespace tessera::testing
