// Equal runs are equal bit for bit; a clip over the whole model.
#include "tessera/train/engine.h"

#include "tests/mpi/runtime/support.h"

namespace tessera::testing {
namespace {

struct DropBlockImpl : torch::nn::Module {
  DropBlockImpl() {
    block = register_module("block", Block());
    drop = register_module("drop", nn::Dropout(0.3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return drop(block(x)) + torch::randn_like(x) * 0.01;
  }
  Block block{nullptr};
  nn::Dropout drop{nullptr};
};
TESSERA_MODULE(DropBlock);

struct DropStackImpl : torch::nn::Module {
  DropStackImpl() {
    layers = register_module(
        "layers", nn::Sequential(DropBlock(), DropBlock(), DropBlock(), DropBlock()));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return layers(x);
  }
  nn::Sequential layers{nullptr};
};
TESSERA_MODULE(DropStack);

void expect_bits_equal(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.losses, b.losses);
  ASSERT_EQ(a.parameters.size(), b.parameters.size());
  for (const auto& [name, tensor] : a.parameters) {
    EXPECT_TRUE(tensor.equal(b.parameters.at(name))) << name;
  }
}

TEST(Random, EqualRunsAreEqualBitForBit) {
  for (const int pp : {1, 2}) {
    for (const char* schedule : {"simple", "interleaved"}) {
      Config config = config_of(pp, pp == 1 ? 2 : 4);
      config.pipeline = schedule;
      const auto make = [] { return DropStack(); };
      const auto batches = random_batches(world_size() * 4);
      const auto first = train_distributed(config, make, batches, 4);
      const auto second = train_distributed(config, make, batches, 4);
      expect_bits_equal(first, second);
      config.seed = 1;
      const auto other = train_distributed(config, make, batches, 4);
      EXPECT_NE(first.losses, other.losses);
    }
  }
}

// The script's own random numbers are not touched by those of the tasks.
TEST(Random, TheScriptsGeneratorGoesOnUntouched) {
  for (const int pp : {1, 2}) {
    init(config_of(pp, 2));
    const Ended ended;
    torch::manual_seed(7);
    DistributedModel model{DropStack()};
    auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
    const torch::NoGradGuard no_grad;
    const auto x = torch::ones({4, kWidth});
    torch::manual_seed(9);
    const auto wanted = torch::randn({3});
    torch::manual_seed(9);
    const auto one = forward(x).concat();
    EXPECT_TRUE(torch::randn({3}).equal(wanted));
    const auto two = forward(x).concat();
    EXPECT_FALSE(one.equal(two)); // each step draws anew
    // Microbatches and replicas draw their own.
    EXPECT_FALSE(one.narrow(0, 0, 2).equal(one.narrow(0, 2, 2)));
    const auto all = allgather(one, Group::kDP);
    for (int i = 0; i < dp_size(); ++i) {
      EXPECT_TRUE(i == dp_rank() || !all[i].equal(one));
    }
    // A resumed run goes on with the numbers of its step.
    train::engine().set_steps_learnt(0);
    EXPECT_TRUE(forward(x).concat().equal(one));
  }
}

TEST(Random, ClipOverTheWholeModel) {
  const double max_norm = 0.05;
  const int slices = world_size() / 2 * 2;
  torch::manual_seed(7);
  Tied plain;
  const Batch batch = random_batches()(0);
  for (int i = 0; i < slices; ++i) {
    const Batch part = part_of(batch, slices, i);
    (torch::mse_loss(plain(part.x), part.y) / slices).backward();
  }
  // libtorch lists a shared parameter twice and would count it twice.
  std::vector<torch::Tensor> unique;
  std::map<std::string, torch::Tensor> wanted;
  for (const auto& item : plain->named_parameters()) {
    if (std::none_of(unique.begin(), unique.end(), [&](const auto& known) {
          return known.is_same(item.value());
        })) {
      unique.push_back(item.value());
      wanted[item.key()] = item.value().grad();
    }
  }
  const double wanted_norm = torch::nn::utils::clip_grad_norm_(unique, max_norm);
  ASSERT_GT(wanted_norm, max_norm);

  init(config_of(2, 2));
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model{Tied()};
  DistributedOptimizer optimizer = sgd(model.parameters());
  auto train_step = tessera::step(
      [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
  const Batch mine = mine_of(batch);
  train_step(mine.x, mine.y);
  const double norm = optimizer.clip_grad_norm(max_norm);
  EXPECT_NEAR(norm, wanted_norm, 1e-5 * wanted_norm);
  EXPECT_FALSE(model.local_parameters().empty());
  for (const auto& [name, parameter] : model.local_parameters()) {
    EXPECT_LE(relative_error(parameter.grad(), wanted.at(name)), 1e-5) << name;
  }
}

} // namespace
} // namespace tessera::testing
