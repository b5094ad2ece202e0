// What a script may do with divided parameters beside training, what it may not, and what is live.
#include <c10/util/ThreadLocalDebugInfo.h>

#include "tests/mpi/sharding/support.h"
#include "tests/support/live_bytes.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

template <typename Net>
TensorMap copies_of(const Net& net) {
  TensorMap state;
  for (const auto& item : net->named_parameters()) {
    state[item.key()] = item.value().detach().clone();
  }
  return state;
}

Block block() {
  torch::manual_seed(7);
  return Block();
}

// Ranks that read alone wait for nobody.
TEST(Uses, AParameterReadByOneRank) {
  const TensorMap wanted = copies_of(block());
  init(sharded(world_size()));
  const Ended ended;
  Block net = block();
  DistributedModel model(net);
  if (rank() == size() - 1) {
    const torch::NoGradGuard no_grad;
    const Batch batch = random_batches(4)(0);
    EXPECT_TRUE(model(batch.x).allclose(block()(batch.x)));
    EXPECT_NEAR(
        net->a->weight.norm().item<double>(), wanted.at("a.weight").norm().item<double>(), 1e-6);
    EXPECT_TRUE(net->a->weight.t().contiguous().equal(wanted.at("a.weight").t()));
  }
  barrier();
  expect_same(copies_of(net), wanted, "read by operators", 0);
  expect_same(model.state_dict(), wanted, "state_dict", 0);
  EXPECT_EQ(net->a->weight.numel(), 2 * kWidth * kWidth); // the whole model's count
}

TEST(Uses, WhatHasNoMemoryIsAnError) {
  init(sharded(world_size()));
  const Ended ended;
  Block net = block();
  DistributedModel model(net);
  auto optimizer = sgd(model.parameters());
  const torch::NoGradGuard no_grad;
  const at::Tensor weight = net->a->weight;
  EXPECT_EQ(weight.data_ptr(), nullptr);
  EXPECT_ANY_THROW(weight.data_ptr<float>());
  EXPECT_ANY_THROW((weight.accessor<float, 2>()));
  EXPECT_THAT(
      error_of<UserError>([&] { weight.mul_(2); }),
      AllOf(
          HasSubstr("aten::mul_ writes to the parameter 'a.weight'"),
          HasSubstr("load_state_dict")));
  EXPECT_THAT(
      error_of<UserError>([&] { torch::nn::init::zeros_(net->b->bias); }), HasSubstr("'b.bias'"));
  EXPECT_THAT(
      error_of<UserError>([&] { net->to(torch::kDouble); }),
      AllOf(HasSubstr("to() was called"), HasSubstr("kept in parts")));
  EXPECT_THAT(
      error_of<ConfigError>([&] { optimizer.clip_grad_norm(1.0); }),
      HasSubstr("sdp_gradient_clipping"));
}

// A reduce-scatter for each bucket of each microbatch.
TEST(Uses, BucketsHaveTheSizeOfTheKey) {
  constexpr int kMicrobatches = 2;
  const auto collectives = [&](std::int64_t elements) {
    Config config = sharded(world_size(), kMicrobatches);
    config.sdp_reduce_bucket_size = elements;
    init(config);
    const Ended ended;
    DistributedModel model(block());
    auto train_step = tessera::step(
        [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
    const comm::Traffic& traffic = shards_of(model).group().traffic();
    std::int64_t before = 0;
    for (int step = 0; step < 3; ++step) {
      const Batch mine = mine_of(random_batches(16)(step));
      before = traffic.calls.load();
      train_step(mine.x, mine.y);
    }
    return traffic.calls.load() - before;
  };
  const std::int64_t in_one = collectives(500'000'000);
  const auto parameters = static_cast<std::int64_t>(block()->parameters().size());
  ASSERT_GE(parameters, 4);
  EXPECT_EQ(collectives(1), in_one + kMicrobatches * (parameters - 1)); // each travels alone
  // A layer's bias and weight, of which every rank has as many as the next number that its degree
  // divides.
  EXPECT_EQ(collectives(2 * kWidth * kWidth + 2 * kWidth + 8), in_one + kMicrobatches);
}

TEST(Uses, OtherMemoryInAHandleIsAnError) {
  init(sharded(world_size()));
  const Ended ended;
  Block net = block();
  DistributedModel model(net);
  net->a->weight.set_data(torch::zeros({2 * kWidth, kWidth}));
  auto step = tessera::step([&](torch::Tensor x) { model(x); });
  EXPECT_THAT(
      error_of<UserError>([&] {
        step(torch::zeros({2, kWidth}));
      }),
      AllOf(HasSubstr("'a.weight'"), HasSubstr("set_data")));
}

TEST(Uses, AGraphOfOldValuesIsAnError) {
  init(sharded(world_size()));
  const Ended ended;
  Block net = block();
  DistributedModel model(net);
  auto optimizer = sgd(model.parameters());
  const Batch mine = mine_of(random_batches(16)(0));
  const auto kept = torch::mse_loss(model(mine.x), mine.y);
  torch::mse_loss(model(mine.x), mine.y).backward();
  optimizer.step();
  EXPECT_ANY_THROW(kept.backward()); // as libtorch: modified by an in-place operation
}

TEST(Uses, LbfgsIsRefused) {
  init(sharded(world_size()));
  const Ended ended;
  DistributedModel model(block());
  DistributedOptimizer optimizer{torch::optim::LBFGS(model.parameters())};
  EXPECT_THAT(
      error_of<ConfigError>([&] { optimizer.step([] { return torch::zeros({}); }); }),
      HasSubstr("sharded_data_parallel_degree"));
}

TEST(Uses, SparseGradientsAreRefused) {
  init(sharded(world_size()));
  const Ended ended;
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, kWidth).sparse(true));
  DistributedModel model(table);
  auto step = tessera::step([&](torch::Tensor ids) { model.backward(model(ids).pow(2).mean()); });
  EXPECT_THAT(
      error_of<UserError>([&] {
        step(torch::tensor({1, 2}));
      }),
      AllOf(HasSubstr("'weight'"), HasSubstr("sdp_param_persistence_threshold")));
}

TEST(Uses, AFailedStepLeavesTheModelUsable) {
  init(sharded(world_size()));
  const Ended ended;
  DistributedModel model(block());
  auto optimizer = sgd(model.parameters());
  bool fails = true;
  auto step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    const auto loss = torch::mse_loss(model(x), y);
    if (fails && rank() == 1) {
      throw std::runtime_error("planted");
    }
    model.backward(loss);
  });
  const Batch mine = mine_of(random_batches(16)(0));
  EXPECT_THAT(error_of<UserError>([&] { step(mine.x, mine.y); }), HasSubstr("planted"));
  fails = false;
  optimizer.zero_grad();
  step(mine.x, mine.y);
  optimizer.step();
  const Trained plain =
      train_plain([] { return block(); }, [](int) { return random_batches(16)(0); }, 1, 1);
  expect_same(model.state_dict(), plain.parameters, "after a failure", 1e-5);
}

// Gradients by hand: a backward without a step, a penalty beside a step, both ways to zero them.
TEST(Uses, GradientsOutsideOfSteps) {
  for (const bool by_module : {false, true}) {
    init(sharded(2));
    const Ended ended;
    Block net = block();
    DistributedModel model(net);
    auto optimizer = sgd(model.parameters());
    Block plain = block();
    torch::optim::SGD reference(plain->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto step = tessera::step(
        [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
    for (int i = 0; i < 3; ++i) {
      const Batch batch = random_batches(16)(i);
      const Batch mine = mine_of(batch);
      if (by_module) {
        net->zero_grad();
      } else {
        optimizer.zero_grad();
      }
      reference.zero_grad();
      torch::mse_loss(plain(batch.x), batch.y).backward();
      if (i == 0) {
        torch::mse_loss(model(mine.x), mine.y).backward();
      } else {
        step(mine.x, mine.y);
        EXPECT_TRUE(net->a->weight.grad().defined());
        EXPECT_ANY_THROW(net->a->weight.grad().norm());
        net->a->weight.grad().mul_(0.5);
        plain->a->weight.grad().mul_(0.5);
        (0.05 * net->b->weight.pow(2).sum()).backward();
        (0.05 * plain->b->weight.pow(2).sum()).backward();
      }
      optimizer.step();
      reference.step();
    }
    expect_same(model.state_dict(), copies_of(plain), str("by module: ", by_module), 1e-5);
  }
}

// Gradients that a script keeps add up, as they do without this library.
TEST(Uses, GradientsThatAreNotZeroed) {
  init(sharded(2));
  const Ended ended;
  DistributedModel model(block());
  auto optimizer = sgd(model.parameters());
  Block plain = block();
  torch::optim::SGD reference(plain->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto step = tessera::step(
      [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
  for (int i = 0; i < 2; ++i) {
    const Batch batch = random_batches(16)(i);
    step(mine_of(batch).x, mine_of(batch).y);
    torch::mse_loss(plain(batch.x), batch.y).backward();
    optimizer.step();
    reference.step();
  }
  expect_same(model.state_dict(), copies_of(plain), "kept gradients", 1e-5);
}

TEST(Uses, OnlyLargeParametersAreDivided) {
  Config config = sharded(2);
  config.sdp_param_persistence_threshold = 2 * kWidth * kWidth; // as large as both weights
  init(config);
  const Ended ended;
  Block net = block();
  DistributedModel model(net);
  std::vector<std::string> names;
  for (const auto& divided : shards_of(model).parameters().list()) {
    names.push_back(divided.name);
    EXPECT_EQ(divided.part.numel(), kWidth * kWidth) << divided.name;
  }
  EXPECT_THAT(names, ::testing::ElementsAre("a.weight", "b.weight"));
  EXPECT_NE(net->a->bias.data_ptr(), nullptr);
  auto optimizer = sgd(model.parameters());
  auto step = tessera::step(
      [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
  const Batch mine = mine_of(random_batches(16)(0));
  step(mine.x, mine.y);
  optimizer.step();
  const Trained plain =
      train_plain([] { return block(); }, [](int) { return random_batches(16)(0); }, 1, 1);
  expect_same(model.state_dict(), plain.parameters, "mixed", 1e-5);
}

// A forward reads whole parameters and takes memory for none of them.
TEST(Uses, NothingIsCopiedForAnOperator) {
  constexpr int kSide = 128;
  init(sharded(world_size()));
  const Ended ended;
  torch::nn::Linear layer(kSide, kSide);
  const at::Tensor wanted = layer->weight.detach().clone();
  DistributedModel model(layer);
  const auto live = std::make_shared<LiveBytes>();
  auto step = tessera::step([&](torch::Tensor x) {
    at::Tensor y;
    {
      const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
      y = torch::linear(x, layer->weight, layer->bias);
    }
    EXPECT_TRUE(y.allclose(x.matmul(wanted.t()) + layer->bias));
    model.backward(y.sum());
  });
  step(torch::ones({1, kSide}));
  EXPECT_GT(live->highest, 0);
  EXPECT_LT(live->highest, wanted.nbytes() / 4);
}

// Parts of parameters, of gradients and of the optimizer's state are 1 / d of the whole.
TEST(Uses, BytesOfARank) {
  const int degree = world_size();
  init(sharded(degree));
  const Ended ended;
  Block net = block();
  DistributedModel model(net);
  DistributedOptimizer optimizer{torch::optim::Adam(model.parameters())};
  auto step = tessera::step(
      [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
  const Batch mine = mine_of(random_batches(16)(0));
  step(mine.x, mine.y);
  std::int64_t whole = 0;
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  for (const auto& divided : shards_of(model).parameters().list()) {
    whole += divided.whole.numel();
    parameters += divided.part.numel();
    gradients += divided.part.grad().numel();
  }
  optimizer.step();
  std::int64_t state = 0;
  for (const auto& [name, fields] : optimizer.local_state_dict().parameters) {
    for (const auto& [field, value] : fields) {
      state += value.isTensor() ? value.toTensor().numel() : 0;
    }
  }
  EXPECT_EQ(whole, 4 * kWidth * kWidth + 3 * kWidth);
  EXPECT_EQ(parameters * degree, whole);
  EXPECT_EQ(gradients * degree, whole);
  EXPECT_EQ(state * degree, 2 * whole);
}

} // namespace
} // namespace tessera::testing
