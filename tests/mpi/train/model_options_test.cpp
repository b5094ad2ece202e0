// What a model is wrapped with, and what tracing is told to measure, reaches those who act on it.
#include "tessera/context/context.h"
#include "tessera/model/decision.h"
#include "tessera/model/model_core.h"
#include "tessera/train/model_access.h"

#include "tests/mpi/runtime/support.h"

namespace tessera::testing {
namespace {

struct FourImpl : torch::nn::Module {
  FourImpl() {
    for (nn::Linear* layer : {&a, &b, &c, &d}) {
      *layer = nn::Linear(kWidth, kWidth);
    }
    register_module("a", a);
    register_module("b", b);
    register_module("c", c);
    register_module("d", d);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return d(torch::tanh(c(torch::tanh(b(torch::tanh(a(x)))))));
  }
  nn::Linear a{nullptr}, b{nullptr}, c{nullptr}, d{nullptr};
};
TESSERA_MODULE(Four);

/// Collectives of the replicas in a step whose order of gradients is known already.
std::int64_t collectives_of_a_step(double bucket_mb) {
  init(config_of(1, 1));
  const Ended ended;
  ModelOptions options;
  options.bucket_cap_mb = bucket_mb;
  DistributedModel model(Four(), options);
  auto train_step = tessera::step(
      [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
  const comm::Traffic& traffic = context().group(Group::kDP).traffic();
  std::int64_t before = 0;
  for (int step = 0; step < 3; ++step) {
    const Batch mine = mine_of(random_batches()(step));
    before = traffic.calls.load();
    train_step(mine.x, mine.y);
  }
  return traffic.calls.load() - before;
}

TEST(OptionsOfAModel, GradientsTravelInBucketsOfItsSize) {
  const double layer = 4.0 * (kWidth * kWidth + kWidth) / (1 << 20); // MiB
  const std::int64_t in_one = collectives_of_a_step(25);
  EXPECT_EQ(collectives_of_a_step(1.1 * layer), in_one + 3);
  EXPECT_EQ(collectives_of_a_step(2.2 * layer), in_one + 1);
}

struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    norm = register_module("norm", nn::BatchNorm1d(kWidth));
    last = register_module("last", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(norm(x));
  }
  nn::BatchNorm1d norm{nullptr};
  nn::Linear last{nullptr};
};
TESSERA_MODULE(Normed);

TEST(OptionsOfAModel, BuffersThatAreNotBroadcastStayTheirReplicas) {
  for (const bool broadcasts : {false, true}) {
    init(config_of(1, 1));
    const Ended ended;
    ModelOptions options;
    options.broadcast_buffers = broadcasts;
    DistributedModel model(Normed(), options);
    auto train_step =
        tessera::step([&](torch::Tensor x) { model.backward(model(x).pow(2).mean()); });
    torch::nn::BatchNorm1d own(kWidth);
    for (int step = 0; step < 3; ++step) {
      const torch::Tensor mine = mine_of(random_batches()(step)).x;
      train_step(mine);
      own(mine);
    }
    // This rank's samples alone, unless each step began with the first rank's statistics.
    const bool theirs = torch::allclose(model.net()->norm->running_mean, own->running_mean);
    EXPECT_EQ(theirs, !broadcasts || rank() == 0);
  }
}

/// Keeps much for its backward and returns little.
struct KeeperImpl : torch::nn::Module {
  KeeperImpl() {
    linear = register_module("linear", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return (linear(x).unsqueeze(-1) * torch::linspace(0, 1, 2000)).sin().mean(-1);
  }
  nn::Linear linear{nullptr};
};
TESSERA_MODULE(Keeper);

struct KeepingImpl : torch::nn::Module {
  KeepingImpl() {
    keeper = register_module("keeper", Keeper());
    rest = register_module("rest", Four());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return rest(keeper(x));
  }
  Keeper keeper{nullptr};
  Four rest{nullptr};
};
TESSERA_MODULE(Keeping);

struct Decided {
  std::map<std::string, int> partition;
  std::int64_t activation_bytes = 0; // of the keeper
};

Decided decided(bool measures) {
  Config config = config_of(2, 1);
  config.trace_memory_usage = measures;
  init(config);
  const Ended ended;
  DistributedModel model{Keeping()};
  auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
  {
    const torch::NoGradGuard no_grad;
    forward(torch::ones({4, kWidth}));
  }
  Decided result;
  result.partition = train::ModelAccess::core(model)->plan().partition;
  EXPECT_EQ(model.decision() != nullptr, rank() == 0);
  if (rank() == 0) {
    for (const auto& module : model.decision()->graph.modules) {
      result.activation_bytes += module.path == "keeper" ? module.activation_bytes : 0;
    }
  }
  result.activation_bytes = broadcast(result.activation_bytes);
  return result;
}

// Of what modules return, the keeper's share is a fifth, and a half of the rest goes with it; of
// what they keep it is nearly all.
TEST(TracedMemory, ThePartitionFollowsWhatModulesKeep) {
  const Decided estimated = decided(false);
  const Decided measured = decided(true);
  EXPECT_LT(estimated.activation_bytes, 10 * 4 * kWidth * 4);
  EXPECT_GE(measured.activation_bytes, 2000 * 4 * kWidth * 4);
  const auto beside_the_keeper = [](const Decided& decision) {
    int count = 0;
    for (const char* name : {"rest.a", "rest.b", "rest.c", "rest.d"}) {
      count += decision.partition.at(name) == decision.partition.at("keeper.linear") ? 1 : 0;
    }
    return count;
  };
  EXPECT_GT(beside_the_keeper(estimated), 0);
  EXPECT_EQ(beside_the_keeper(measured), 0);
}

} // namespace
} // namespace tessera::testing
