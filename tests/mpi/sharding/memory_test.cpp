// Parameters without memory where code wants bytes: messages, collectives, offloading. And ranks on
// which a parameter's memory is not alike.
#include <cstdint>

#include "bench/blocks/shard_memory.h"
#include "tests/mpi/sharding/support.h"

namespace tessera::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

Block seeded_block() {
  torch::manual_seed(7);
  return Block();
}

// A view that begins inside of the parameter has a pointer that is not null.
TEST(WithoutMemory, ViewsAreSent) {
  const at::Tensor wanted = seeded_block()->a->weight.detach().clone();
  init(sharded(world_size()));
  const Ended ended;
  Block net = seeded_block();
  DistributedModel model(net);
  const at::Tensor weight = net->a->weight.detach();
  for (const auto& [view, same] :
       {std::make_pair(weight, wanted),
        std::make_pair(weight[1], wanted[1]),
        std::make_pair(weight.narrow(0, 2, 3), wanted.narrow(0, 2, 3)),
        std::make_pair(weight.t(), wanted.t())}) {
    for (const at::Tensor& other : allgather(view, Group::kWorld)) {
      EXPECT_TRUE(other.equal(same)) << same.sizes();
    }
  }
}

TEST(WithoutMemory, CollectivesRefuseIt) {
  init(sharded(world_size()));
  const Ended ended;
  Block net = seeded_block();
  DistributedModel model(net);
  comm::ProcessGroup& group = process_group(Group::kDP);
  const at::Tensor weight = net->a->weight.detach();
  for (const at::Tensor& tensor : {weight, weight[1]}) {
    EXPECT_THAT(
        error_of<ShapeError>([&] { group.all_reduce(tensor); }), HasSubstr("pass tensor.clone()"));
  }
  at::Tensor all = torch::empty({world_size() * weight.size(0), weight.size(1)});
  EXPECT_THAT(error_of<ShapeError>([&] { group.all_gather(all, weight); }), HasSubstr("no memory"));
  const at::Tensor own = weight.clone();
  group.all_reduce(own);
  EXPECT_TRUE(own.equal(world_size() * seeded_block()->a->weight.detach()));
}

constexpr int kColumns = 64; // a table has 16384 bytes: enough to leave

struct ProductsImpl : torch::nn::Module {
  torch::Tensor
  forward(const torch::Tensor& x, const torch::Tensor& columns, const torch::Tensor& shift) {
    return torch::tanh(torch::matmul(x, columns)) + torch::matmul(x, shift);
  }
};
TESSERA_MODULE(Products);

/// What is recomputed is given views of a divided parameter, and one that is frozen.
struct GivingImpl : torch::nn::Module {
  GivingImpl() {
    table = register_parameter("table", 0.1 * torch::randn({2 * kColumns, kColumns}));
    frozen = register_parameter("frozen", 0.1 * torch::randn({kColumns, kColumns}), false);
    products = register_module("products", Products());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto h = checkpoint_call(products, x, table.narrow(0, 0, kColumns).t(), frozen);
    return checkpoint_call(products, h, table.narrow(0, kColumns, kColumns), frozen);
  }
  torch::Tensor table, frozen;
  Products products{nullptr};
};
TESSERA_MODULE(Giving);

TEST(WithoutMemory, NothingLeavesWithOffloading) {
  TensorMap wanted;
  for (const int degree : {1, 2}) {
    Config config = sharded(degree, 2);
    config.offload_activations = degree > 1;
    init(config);
    const Ended ended;
    torch::manual_seed(7);
    DistributedModel model(Giving{});
    auto optimizer = sgd(model.parameters());
    auto step = tessera::step(
        [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
    for (int i = 0; i < 3; ++i) {
      const Batch mine = mine_of(random_batches(16, kColumns)(i));
      optimizer.zero_grad();
      step(mine.x, mine.y);
      optimizer.step();
    }
    if (degree == 1) {
      wanted = model.state_dict();
    } else {
      expect_same(model.state_dict(), wanted, "offloaded", 1e-5);
    }
  }
}

/// Bytes of the average of one parameter's part, 0 where a zero takes none.
std::int64_t bytes_of_averages(const sharding::ModelShards& shards) {
  std::int64_t bytes = 0;
  for (const auto& divided : shards.parameters().list()) {
    const at::Tensor average = divided.part.grad();
    bytes += average.defined() ? static_cast<std::int64_t>(average.nbytes()) : 0;
  }
  return bytes;
}

TEST(MemoryOfZeros, IsTakenWhereAnOptimizerAsksForThem) {
  init(sharded(2));
  const Ended ended;
  DistributedModel model(seeded_block());
  DistributedOptimizer optimizer{
      torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.5))};
  auto step = tessera::step(
      [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
  const Batch mine = mine_of(random_batches(16)(0));
  step(mine.x, mine.y);
  optimizer.step();
  const std::int64_t held = bytes_of_averages(shards_of(model));
  EXPECT_GT(held, 0);
  optimizer.zero_grad(/*set_to_none=*/false);
  EXPECT_EQ(bytes_of_averages(shards_of(model)), 0);
  for (const at::Tensor& parameter : model.parameters()) {
    EXPECT_TRUE(parameter.grad().defined());
  }
  const TensorMap before = model.state_dict();
  optimizer.step(); // momentum goes on, as with zeros
  EXPECT_EQ(bytes_of_averages(shards_of(model)), held);
  EXPECT_FALSE(model.state_dict().at("a.weight").equal(before.at("a.weight")));
}

struct WideImpl : torch::nn::Module {
  WideImpl() : layers(register_module("layers", torch::nn::Sequential())) {
    for (int i = 0; i < kLayers; ++i) {
      layers->push_back(
          torch::nn::Linear(torch::nn::LinearOptions(kColumns, kColumns).bias(false)));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return layers->forward(x);
  }
  static constexpr int kLayers = 24; // few enough for seconds, more than are on their way at a time
  torch::nn::Sequential layers;
};
TESSERA_MODULE(Wide);

TEST(MemoryOfAStep, IsWhatTheFormulaSays) {
  auto& count = bench::MemoryCount::install();
  for (const int degree : degrees()) {
    Config config = sharded(degree);
    config.sdp_reduce_bucket_size = kColumns * kColumns; // each gradient travels alone
    init(config);
    const Ended ended;
    torch::manual_seed(7);
    const Batch batch = random_batches(4, kColumns)(0);
    const auto found = bench::shard_memory(
        count,
        [] { return Wide(); },
        [](const std::vector<at::Tensor>& list) {
          return torch::optim::SGD(list, torch::optim::SGDOptions(0.1));
        },
        {.degree = degree, .least_elements = 0, .moments = 0},
        batch.x,
        batch.y,
        1);
    EXPECT_LE(static_cast<double>(found.highest), 1.05 * static_cast<double>(found.formula))
        << "degree " << degree;
  }
}

// The script of one rank keeps another handle of a parameter's memory.
TEST(UnevenMemory, WhatOneRankCannotDivideIsWholeOnAll) {
  init(sharded(2));
  const Ended ended;
  Block net = seeded_block();
  const at::Tensor alias = rank() == 1 ? net->a->weight.detach() : at::Tensor();
  DistributedModel model(net);
  std::vector<std::string> names;
  for (const auto& divided : shards_of(model).parameters().list()) {
    names.push_back(divided.name);
  }
  EXPECT_THAT(names, Not(Contains("a.weight")));
  EXPECT_THAT(names, Contains("b.weight"));
  auto optimizer = sgd(model.parameters());
  auto step = tessera::step(
      [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
  const Batch mine = mine_of(random_batches(16)(0));
  step(mine.x, mine.y);
  optimizer.step();
  const Trained plain =
      train_plain([] { return seeded_block(); }, [](int) { return random_batches(16)(0); }, 1, 1);
  expect_same(model.state_dict(), plain.parameters, "kept whole", 1e-5);
  if (alias.defined()) {
    EXPECT_TRUE(alias.equal(net->a->weight));
  }
}

/// Evaluates twice and keeps the second gradients.
struct Twice : torch::optim::SGD {
  using SGD::SGD;
  torch::Tensor step(LossClosure closure) override {
    closure();
    return SGD::step(closure);
  }
};

TEST(WithoutMemory, ASecondCallOfAClosureIsRefused) {
  init(sharded(2));
  const Ended ended;
  DistributedModel model(seeded_block());
  DistributedOptimizer optimizer{Twice(model.parameters(), torch::optim::SGDOptions(0.1))};
  auto step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto loss = torch::mse_loss(model(x), y);
    model.backward(loss);
    return loss;
  });
  const Batch mine = mine_of(random_batches(16)(0));
  EXPECT_THAT(
      error_of<UserError>([&] {
        optimizer.step([&] {
          optimizer.zero_grad();
          return step(mine.x, mine.y).reduce_mean();
        });
      }),
      HasSubstr("sharded_data_parallel_degree"));
}

} // namespace
} // namespace tessera::testing
