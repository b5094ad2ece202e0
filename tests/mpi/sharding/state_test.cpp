// States and checkpoints are of whole tensors, so they fit any degree.
#include <c10/util/ThreadLocalDebugInfo.h>

#include "tests/mpi/sharding/support.h"
#include "tests/support/live_bytes.h"
#include "tests/support/shared_folder.h"

namespace tessera::testing {
namespace {

struct Training {
  explicit Training(at::ScalarType type = at::kFloat)
      : net(made(type)),
        model(net),
        optimizer(torch::optim::AdamW(model.parameters(), torch::optim::AdamWOptions(0.01))),
        dtype(type) {}
  static Mixed made(at::ScalarType type) {
    torch::manual_seed(7);
    Mixed net;
    net->to(type);
    return net;
  }
  void step(int number) {
    auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
      model.backward((model(x.to(dtype)) - y.to(dtype)).pow(2).mean());
    });
    const Batch mine = mine_of(random_batches(16)(number));
    optimizer.zero_grad();
    train_step(mine.x, mine.y);
    optimizer.step();
  }
  Mixed net;
  DistributedModel<Mixed> model;
  DistributedOptimizer optimizer;
  at::ScalarType dtype;
};

std::vector<int> all_degrees() {
  std::vector<int> list{1};
  for (const int degree : degrees()) {
    list.push_back(degree);
  }
  return list;
}

void expect_resumed(bool full) {
  for (const int from : all_degrees()) {
    const SharedFolder folder;
    TensorMap uninterrupted;
    std::string hash;
    {
      init(sharded(from));
      const Ended ended;
      Training run;
      run.step(0);
      run.step(1);
      hash = save(run.model, run.optimizer, folder.path(), "two", {.full = full}).state_hash;
      run.step(2);
      uninterrupted = run.model.state_dict();
    }
    for (const int to : all_degrees()) {
      init(sharded(to));
      const Ended ended;
      Training run;
      ASSERT_TRUE(load(run.model, run.optimizer, folder.path()));
      // The same state again, bit for bit.
      EXPECT_EQ(
          save(run.model, run.optimizer, folder.path(), "again", {.full = full}).state_hash, hash);
      run.step(2);
      const TensorMap resumed = run.model.state_dict();
      const std::string what = str("from degree ", from, " to ", to, full ? ", full" : "");
      expect_same(resumed, uninterrupted, what, from == to ? 0 : 1e-5);
    }
  }
}

TEST(State, ResumesUnderAnyDegree) {
  expect_resumed(false);
}

TEST(State, ResumesFromAFullCheckpoint) {
  expect_resumed(true);
}

TEST(State, MastersAreSaved) {
  for (const int degree : degrees()) {
    const SharedFolder folder;
    TensorMap uninterrupted;
    {
      init(sharded(degree));
      const Ended ended;
      Training run(at::kBFloat16);
      run.step(0);
      save(run.model, run.optimizer, folder.path(), "one");
      run.step(1);
      uninterrupted = run.model.state_dict();
    }
    init(sharded(degree));
    const Ended ended;
    Training run(at::kBFloat16);
    load(run.model, run.optimizer, folder.path());
    run.step(1);
    expect_same(run.model.state_dict(), uninterrupted, str("degree ", degree), 0);
  }
}

TEST(State, DictionariesFitAnyDegree) {
  const TwoSteps before = two_steps<Training>(sharded(2));
  EXPECT_EQ(
      before.optimizer.parameters.at("narrow.weight").at("exp_avg").toTensor().sizes(),
      torch::IntArrayRef({7, kWidth}));
  for (const int degree : all_degrees()) {
    init(sharded(degree));
    const Ended ended;
    Training run;
    run.model.load_state_dict(before.model);
    run.optimizer.load_state_dict(before.optimizer);
    run.step(1);
    expect_same(run.model.state_dict(), before.uninterrupted, str("degree ", degree), 1e-5);
  }
}

/// Two large layers, built without memory where `delayed`.
TensorMap built(int degree, bool delayed) {
  init(sharded(degree));
  const Ended ended;
  torch::manual_seed(7);
  torch::nn::Sequential net;
  {
    const delay_param_initialization scope(delayed);
    net->push_back(torch::nn::Linear(kWidth, 64));
    net->push_back(torch::nn::Linear(64, kWidth));
  }
  DistributedModel model(net);
  EXPECT_NE(net->parameters()[0].device().type(), at::kMeta);
  auto optimizer = sgd(model.parameters());
  auto train_step = tessera::step(
      [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
  const Batch mine = mine_of(random_batches(16)(0));
  train_step(mine.x, mine.y);
  optimizer.step();
  return model.state_dict();
}

TEST(State, DelayedParametersAreDividedAsTheyAreMade) {
  const TensorMap plain = built(1, true);
  for (const int degree : degrees()) {
    expect_same(built(degree, true), plain, str("degree ", degree), 1e-6);
  }
}

// Parts are shared memory, which is not counted: what is, is a parameter as it was made. A model
// that has its memory already is the other case, so the count sees what it is to see.
TEST(State, OfADelayedModelOneLayerIsWholeAtATime) {
  constexpr std::int64_t kWide = 96;
  constexpr int kLayers = 8;
  constexpr std::int64_t kBytes = kWide * kWide * 4; // of a layer
  for (const bool delayed : {true, false}) {
    init(sharded(world_size()));
    const Ended ended;
    const auto bytes = std::make_shared<LiveBytes>();
    const c10::DebugInfoGuard counted(c10::DebugInfoKind::PROFILER_STATE, bytes);
    torch::nn::Sequential net;
    {
      const delay_param_initialization scope(delayed);
      for (int i = 0; i < kLayers; ++i) {
        net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWide, kWide).bias(false)));
      }
    }
    DistributedModel model(net);
    if (delayed) {
      EXPECT_GE(bytes->highest, kBytes);
      EXPECT_LE(bytes->highest, 3 * kBytes); // a layer, what its values are drawn into, a message
    } else {
      EXPECT_GE(bytes->highest, kLayers * kBytes);
    }
  }
}

TEST(State, IsCopiedToAPlainModule) {
  init(sharded(2));
  const Ended ended;
  Training run;
  run.step(0);
  Mixed plain;
  run.model.copy_to(plain);
  const TensorMap state = run.model.state_dict();
  for (const auto& item : plain->named_parameters()) {
    EXPECT_TRUE(item.value().equal(state.at(item.key()))) << item.key();
  }
}

} // namespace
} // namespace tessera::testing
