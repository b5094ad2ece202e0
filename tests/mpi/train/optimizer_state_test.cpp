// State dictionaries of an optimizer: what they hold, and that training goes on
// from one as it would have, loaded before the partition or after it.
#include <set>

#include <gmock/gmock.h>

#include "tests/mpi/train/pair_net.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

const std::set<std::string> kNames = {"a.weight", "a.bias", "b.weight", "b.bias"};

torch::optim::AdamW adamw(const std::vector<torch::Tensor>& parameters) {
  return torch::optim::AdamW(parameters, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
}

// One process, the world's batches in the slices of the strategy.
struct PlainRun {
  explicit PlainRun(int seed = 11) : net(made(seed)) {}
  static PairNet made(int seed) {
    torch::manual_seed(seed);
    return {};
  }
  void step(int number, int slices) {
    const Batch batch = random_batches()(number);
    optimizer.zero_grad();
    for (int i = 0; i < slices; ++i) {
      const Batch part = part_of(batch, slices, i);
      (torch::mse_loss(net(part.x), part.y) / slices).backward();
    }
    optimizer.step();
  }
  state::OptimizerState state() {
    NamedTensors names;
    for (const auto& item : net->named_parameters()) {
      names.emplace_back(item.key(), item.value());
    }
    return state::capture(optimizer, names);
  }
  TensorMap parameters() const {
    TensorMap map;
    for (const auto& item : net->named_parameters()) {
      map[item.key()] = item.value().detach().clone();
    }
    return map;
  }
  PairNet net;
  torch::optim::AdamW optimizer = adamw(net->parameters());
};

state::OptimizerState copy_of(state::OptimizerState state) {
  for (auto& [name, fields] : state.parameters) {
    for (auto& [key, value] : fields) {
      if (value.isTensor()) {
        value = value.toTensor().clone();
      }
    }
  }
  return state;
}

void expect_same_state(
    const state::OptimizerState& got,
    const state::OptimizerState& wanted,
    const std::set<std::string>& names) {
  EXPECT_EQ(got.kind, wanted.kind);
  ASSERT_EQ(got.groups.size(), 1U);
  const auto& listed = got.groups[0].parameters;
  EXPECT_EQ(std::set<std::string>(listed.begin(), listed.end()), names);
  EXPECT_EQ(listed.size(), names.size());
  EXPECT_EQ(
      got.groups[0].options.at("lr").toDouble(), wanted.groups[0].options.at("lr").toDouble());
  EXPECT_EQ(got.parameters.size(), names.size());
  for (const auto& name : names) {
    ASSERT_TRUE(got.parameters.contains(name)) << name;
    const auto& mine = got.parameters.at(name);
    const auto& theirs = wanted.parameters.at(name);
    ASSERT_EQ(mine.size(), theirs.size()) << name;
    int tensors = 0;
    for (const auto& [key, value] : theirs) {
      if (value.isTensor()) {
        ++tensors;
        EXPECT_LE(relative_error(mine.at(key).toTensor(), value.toTensor()), 1e-5)
            << name << ", " << key;
      } else {
        EXPECT_EQ(mine.at(key).toInt(), value.toInt()) << name << ", " << key;
      }
    }
    EXPECT_EQ(tensors, 2) << name; // both moments
  }
}

constexpr int kParts = 2; // microbatches
int slices() {
  return kParts * world_size() / 2;
}

struct Distributed {
  Distributed()
      : model{PlainRun::made(rdp_rank() == 0 ? 11 : 12)}, optimizer(adamw(model.parameters())) {}
  void step(int number) {
    auto train_step = tessera::step(
        [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
    const Batch mine = mine_of(random_batches()(number));
    optimizer.zero_grad();
    train_step(mine.x, mine.y);
    optimizer.step();
  }
  DistributedModel<PairNet> model;
  DistributedOptimizer optimizer;
};

Config tower_config() {
  return placed(2, kParts, {{"b", 1}});
}

void expect_parameters(const TensorMap& got, const TensorMap& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    EXPECT_LE(relative_error(got.at(name), tensor), 1e-5) << name;
  }
}

TEST(OptimizerState, IsThatOfOneProcess) {
  PlainRun plain;
  init(tower_config());
  const Ended ended;
  Distributed run;
  EXPECT_THAT(
      error_of<ConfigError>([&] { run.optimizer.local_state_dict(); }),
      HasSubstr("not partitioned yet"));
  EXPECT_THAT(
      error_of<ConfigError>([&] { run.optimizer.state_dict(); }), HasSubstr("not partitioned yet"));
  for (int i = 0; i < 3; ++i) {
    plain.step(i, slices());
    run.step(i);
  }
  const std::set<std::string> own = pp_rank() == 0 ? std::set<std::string>{"a.weight", "a.bias"}
                                                   : std::set<std::string>{"b.weight", "b.bias"};
  const auto wanted = plain.state();
  expect_same_state(run.optimizer.local_state_dict(), wanted, own);
  const auto whole = run.optimizer.state_dict();
  expect_same_state(whole, wanted, kNames);
  // The local one is the optimizer's own, the whole one a copy of its time.
  const std::string name = *own.begin();
  const auto before = whole.parameters.at(name).at("exp_avg").toTensor().clone();
  const auto local = run.optimizer.local_state_dict();
  run.step(3);
  const auto kept = whole.parameters.at(name).at("exp_avg").toTensor();
  EXPECT_TRUE(kept.equal(before));
  EXPECT_FALSE(local.parameters.at(name).at("exp_avg").toTensor().equal(kept));
}

TEST(OptimizerState, BeforeAnyStepOfTheOptimizer) {
  init(tower_config());
  const Ended ended;
  Distributed run;
  auto forward = tessera::step([&](torch::Tensor x) { return run.model(x); });
  {
    const torch::NoGradGuard no_grad;
    forward(torch::ones({4, kWidth}));
  }
  const auto whole = run.optimizer.state_dict();
  EXPECT_TRUE(whole.parameters.empty());
  EXPECT_EQ(whole.groups.at(0).parameters.size(), kNames.size());
}

class LoadedState : public ::testing::TestWithParam<bool> {};

TEST_P(LoadedState, TrainingGoesOnAsItWouldHave) {
  const bool before_partition = GetParam();
  PlainRun plain;
  for (int i = 0; i < 3; ++i) {
    plain.step(i, slices());
  }
  const auto state = copy_of(plain.state());
  const auto parameters = plain.parameters();
  for (int i = 3; i < 5; ++i) {
    plain.step(i, slices());
  }
  init(tower_config());
  const Ended ended;
  Distributed run;
  if (!before_partition) {
    run.step(7); // what it leaves is replaced
  }
  run.model.load_state_dict(parameters);
  run.optimizer.load_state_dict(copy_of(state));
  for (int i = 3; i < 5; ++i) {
    run.step(i);
  }
  expect_parameters(run.model.state_dict(), plain.parameters());
  expect_same_state(run.optimizer.state_dict(), plain.state(), kNames);
}

// What a rank gave out as its own part is enough for that rank.
TEST_P(LoadedState, PartOfThisRankIsEnough) {
  const bool before_partition = GetParam();
  state::OptimizerState part;
  TensorMap parameters;
  TensorMap wanted;
  {
    init(tower_config());
    const Ended ended;
    Distributed run;
    for (int i = 0; i < 2; ++i) {
      run.step(i);
    }
    part = copy_of(run.optimizer.local_state_dict());
    parameters = run.model.state_dict();
    run.step(2);
    wanted = run.model.state_dict();
  }
  init(tower_config());
  const Ended ended;
  Distributed run;
  if (!before_partition) {
    run.step(7);
  }
  run.model.load_state_dict(parameters);
  run.optimizer.load_state_dict(part);
  run.step(2);
  const auto got = run.model.state_dict();
  for (const auto& [name, tensor] : wanted) {
    EXPECT_TRUE(got.at(name).equal(tensor)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(When, LoadedState, ::testing::Bool(), [](const auto& info) {
  return info.param ? "BeforeThePartition" : "AfterThePartition";
});

TEST(OptimizerState, WhatDoesNotFitIsNamedWhereItIsOwned) {
  PlainRun plain;
  plain.step(0, 1);
  init(tower_config());
  const Ended ended;
  Distributed run;
  run.step(0);
  auto missing = copy_of(plain.state());
  std::erase(missing.groups[0].parameters, "b.bias");
  missing.parameters.erase("b.bias");
  auto wrong = copy_of(plain.state());
  wrong.parameters.at("b.weight")["exp_avg"] = torch::ones({2, 3});
  for (const auto& [state, name] :
       {std::make_pair(missing, "b.bias"), std::make_pair(wrong, "b.weight")}) {
    const std::string text = error_of<CheckpointError>(
        [&, given = copy_of(state)] { run.optimizer.load_state_dict(given); });
    EXPECT_THAT(text, pp_rank() == 1 ? HasSubstr(name) : HasSubstr(""));
    EXPECT_EQ(text.empty(), pp_rank() == 0) << text;
  }
  auto other = copy_of(plain.state());
  other.kind = "SGD";
  EXPECT_THAT(
      error_of<CheckpointError>([&] { run.optimizer.load_state_dict(other); }), HasSubstr("SGD"));
}

} // namespace
} // namespace tessera::testing
