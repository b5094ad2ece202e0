#include "tessera/state/optimizer_state.h"

#include <functional>
#include <memory>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/state/optimizer_registry.h"
#include "tessera/state/optimizer_state_key.h"

#include "tests/support/test_folder.h"

namespace tessera::state {

// An optimizer of a user's own: its state is known by visit_fields.
struct DecayedState : torch::optim::OptimizerCloneableParamState<DecayedState> {
  at::Tensor average;
  std::int64_t steps = 0;
  double scale = 1;
};
struct DecayedOptions : torch::optim::OptimizerCloneableOptions<DecayedOptions> {
  double lr = 0.1;
  std::vector<double> rates = {0.5, 0.25};
};
template <typename Visitor>
void visit_fields(DecayedState& state, Visitor& visit) {
  visit("average", state.average);
  visit("steps", state.steps);
  visit("scale", state.scale);
}
template <typename Visitor>
void visit_fields(DecayedOptions& options, Visitor& visit) {
  visit("lr", options.lr);
  visit("rates", options.rates);
}

// The same, known by libtorch's own serialize members only.
struct ArchivedState : torch::optim::OptimizerCloneableParamState<ArchivedState> {
  at::Tensor average;
  std::int64_t steps = 0;
  double scale = 1;
  void serialize(torch::serialize::OutputArchive& archive) const override {
    archive.write("average", average, /*is_buffer=*/true);
    archive.write("steps", c10::IValue(steps));
    archive.write("scale", c10::IValue(scale));
  }
  void serialize(torch::serialize::InputArchive& archive) override {
    c10::IValue value;
    archive.read("average", value);
    average = value.toTensor();
    archive.read("steps", value);
    steps = value.toInt();
    archive.read("scale", value);
    scale = value.toDouble();
  }
};
struct ArchivedOptions : torch::optim::OptimizerCloneableOptions<ArchivedOptions> {
  double lr = 0.1;
  void serialize(torch::serialize::OutputArchive& archive) const override {
    archive.write("lr", c10::IValue(lr));
  }
  void serialize(torch::serialize::InputArchive& archive) override {
    c10::IValue value;
    archive.read("lr", value);
    lr = value.toDouble();
  }
};

template <typename State, typename Options>
class Decayed : public torch::optim::Optimizer {
 public:
  explicit Decayed(std::vector<at::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<Options>()) {}
  at::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      auto& options = static_cast<Options&>(group.options());
      for (auto& parameter : group.params()) {
        auto& slot = state()[optimizer_state_key(parameter)];
        if (slot == nullptr) {
          auto made = std::make_unique<State>();
          made->average = torch::zeros_like(parameter);
          slot = std::move(made);
        }
        auto& mine = static_cast<State&>(*slot);
        mine.scale *= 0.9;
        ++mine.steps;
        mine.average.mul_(0.5).add_(parameter.grad());
        parameter.sub_(mine.average * mine.scale * options.lr / static_cast<double>(mine.steps));
      }
    }
    return {};
  }
};

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using tests::message_of;
namespace optim = torch::optim;

struct Net {
  explicit Net(int seed) {
    torch::manual_seed(seed);
    layers =
        torch::nn::Sequential(torch::nn::Linear(4, 6), torch::nn::Tanh(), torch::nn::Linear(6, 2));
  }
  NamedTensors named() const {
    NamedTensors names;
    for (const auto& item : layers->named_parameters()) {
      names.emplace_back(item.key(), item.value());
    }
    return names;
  }
  void step(optim::Optimizer& optimizer, int seed) {
    torch::manual_seed(seed);
    optimizer.zero_grad();
    layers->forward(torch::randn({8, 4})).pow(2).sum().backward();
    optimizer.step();
  }
  void copy_from(const Net& other) const {
    const torch::NoGradGuard no_grad;
    for (const auto& item : layers->named_parameters()) {
      at::Tensor(item.value()).copy_(other.layers->named_parameters()[item.key()]);
    }
  }
  bool equals(const Net& other) const {
    for (const auto& item : layers->named_parameters()) {
      if (!torch::equal(item.value(), other.layers->named_parameters()[item.key()])) {
        return false;
      }
    }
    return true;
  }
  torch::nn::Sequential layers{nullptr};
};

using Make = std::function<std::unique_ptr<optim::Optimizer>(std::vector<at::Tensor>)>;

struct Kind {
  std::string name;
  Make make;
};

template <typename Optimizer, typename Options>
Kind kind_of(const std::string& name, const Options& options) {
  return {name, [options](std::vector<at::Tensor> parameters) {
            return std::make_unique<Optimizer>(std::move(parameters), options);
          }};
}

template <typename State, typename Options>
Kind own_kind(const std::string& name) {
  static const bool registered = [&] {
    register_optimizer_state<State, Options>(name);
    return true;
  }();
  EXPECT_TRUE(registered);
  return {name, [](std::vector<at::Tensor> parameters) {
            return std::make_unique<Decayed<State, Options>>(std::move(parameters));
          }};
}

std::vector<Kind> kinds() {
  return {
      kind_of<optim::SGD>("SGD", optim::SGDOptions(0.01)),
      kind_of<optim::SGD>(
          "SGD", optim::SGDOptions(0.01).momentum(0.9).weight_decay(0.1).nesterov(true)),
      kind_of<optim::Adam>("Adam", optim::AdamOptions(0.01)),
      kind_of<optim::Adam>("Adam", optim::AdamOptions(0.01).amsgrad(true)),
      kind_of<optim::AdamW>("AdamW", optim::AdamWOptions(0.01).weight_decay(0.1)),
      kind_of<optim::Adagrad>("Adagrad", optim::AdagradOptions(0.1).lr_decay(0.01)),
      kind_of<optim::RMSprop>("RMSprop", optim::RMSpropOptions(0.01).momentum(0.9).centered(true)),
      own_kind<DecayedState, DecayedOptions>("Decayed"),
      own_kind<ArchivedState, ArchivedOptions>("Archived")};
}

TEST(OptimizerState, AResumedOptimizerStepsAsTheUninterruptedOne) {
  for (const auto& kind : kinds()) {
    Net straight(1);
    const auto optimizer = kind.make(straight.layers->parameters());
    for (int i = 0; i < 4; ++i) {
      straight.step(*optimizer, i);
    }
    const OptimizerState state = capture(*optimizer, straight.named());
    EXPECT_EQ(state.kind, kind.name);
    Net resumed(2);
    resumed.copy_from(straight);
    const auto other = kind.make(resumed.layers->parameters());
    restore(*other, state, resumed.named());
    for (int i = 4; i < 8; ++i) {
      straight.step(*optimizer, i);
      resumed.step(*other, i);
      ASSERT_TRUE(resumed.equals(straight)) << kind.name << " step " << i;
    }
  }
}

TEST(OptimizerState, WithoutTheStateTheNextStepDiffers) {
  // Shows that the test above can fail.
  for (const auto& kind : kinds()) {
    if (kind.name == "SGD") {
      continue; // plain SGD has no state
    }
    Net straight(1);
    const auto optimizer = kind.make(straight.layers->parameters());
    for (int i = 0; i < 4; ++i) {
      straight.step(*optimizer, i);
    }
    Net resumed(2);
    resumed.copy_from(straight);
    const auto other = kind.make(resumed.layers->parameters());
    straight.step(*optimizer, 4);
    resumed.step(*other, 4);
    EXPECT_FALSE(resumed.equals(straight)) << kind.name;
  }
}

TEST(OptimizerState, OptionsAreRestoredAndRestoringErasesYoungerState) {
  Net net(1);
  optim::Adam adam(net.layers->parameters(), optim::AdamOptions(0.01));
  adam.param_groups()[0].options().set_lr(0.00123);
  const auto before = capture(adam, net.named());
  EXPECT_TRUE(before.parameters.empty());
  net.step(adam, 0);
  adam.param_groups()[0].options().set_lr(5);
  EXPECT_EQ(adam.state().size(), 4U);
  restore(adam, before, net.named());
  EXPECT_EQ(adam.param_groups()[0].options().get_lr(), 0.00123);
  EXPECT_TRUE(adam.state().empty());
}

TEST(OptimizerState, ARankTakesItsPartOfALargerState) {
  Net whole(1);
  const auto all = whole.layers->parameters();
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(
      std::vector<at::Tensor>{all[0], all[2]}, std::make_unique<optim::AdamOptions>(0.01));
  groups.emplace_back(
      std::vector<at::Tensor>{all[1], all[3]}, std::make_unique<optim::AdamOptions>(0.5));
  optim::Adam adam(groups);
  whole.step(adam, 0);
  const auto state = capture(adam, whole.named());
  // Only the biases, in one group, one of them alone in its own.
  Net part(2);
  part.copy_from(whole);
  const auto own = part.layers->parameters();
  std::vector<optim::OptimizerParamGroup> own_groups;
  own_groups.emplace_back(std::vector<at::Tensor>{});
  own_groups.emplace_back(std::vector<at::Tensor>{own[3], own[1]});
  optim::Adam other(own_groups, optim::AdamOptions(7));
  restore(other, state, part.named());
  EXPECT_EQ(other.param_groups()[0].options().get_lr(), 0.01);
  EXPECT_EQ(other.param_groups()[1].options().get_lr(), 0.5);
  whole.step(adam, 1);
  part.step(other, 1);
  EXPECT_TRUE(torch::equal(own[1], all[1]));
  EXPECT_TRUE(torch::equal(own[3], all[3]));
  // Parameters saved with different learning rates cannot share a group.
  optim::Adam mixed(own, optim::AdamOptions(7));
  try {
    restore(mixed, state, part.named());
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(
        error.what(), AllOf(HasSubstr("0.bias"), HasSubstr("other options"), HasSubstr("2.bias")));
  }
  EXPECT_EQ(mixed.param_groups()[0].options().get_lr(), 7);
}

TEST(OptimizerState, WhatDoesNotFitIsListedAndNothingChanges) {
  Net net(1);
  optim::Adam adam(net.layers->parameters(), optim::AdamOptions(0.01));
  net.step(adam, 0);
  auto state = capture(adam, net.named());
  state.parameters.at("0.weight")["exp_avg"] = torch::zeros({3});
  state.parameters.at("0.bias").erase("step");
  state.parameters.at("2.bias")["extra"] = 1;
  state.parameters.at("2.weight")["step"] = "one";
  auto kept = state;
  state.groups[0].parameters.pop_back();
  optim::Adam other(net.layers->parameters(), optim::AdamOptions(0.5));
  try {
    restore(other, state, net.named());
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(
        error.what(),
        AllOf(
            HasSubstr("missing: 2.bias"),
            HasSubstr("exp_avg of 0.weight was saved as [3]"),
            HasSubstr("\"step\" is missing"),
            HasSubstr("state of 2.weight")));
  }
  try {
    restore(other, kept, net.named());
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("extra"));
  }
  EXPECT_TRUE(other.state().empty());
  EXPECT_EQ(other.param_groups()[0].options().get_lr(), 0.5);
}

struct UnknownOptions : torch::optim::OptimizerCloneableOptions<UnknownOptions> {
  double lr = 0.1;
};

TEST(OptimizerState, OptimizersThatCannotBeSavedAreRefusedWithTheReason) {
  Net net(1);
  const auto parameters = net.layers->parameters();
  const optim::LBFGS lbfgs(parameters);
  EXPECT_THAT(message_of([&] { capture(lbfgs, net.named()); }), HasSubstr("LBFGS"));
  const Decayed<DecayedState, UnknownOptions> unknown(parameters);
  EXPECT_THAT(
      message_of([&] { capture(unknown, net.named()); }),
      AllOf(HasSubstr("UnknownOptions"), HasSubstr("register_optimizer_state")));
  const optim::SGD sgd(parameters, 0.1);
  EXPECT_THAT(
      message_of([&] {
        capture(sgd, {{"0.weight", parameters[0]}});
      }),
      AllOf(HasSubstr("tensor 1 of group 0"), HasSubstr("[6]")));
  EXPECT_THAT(
      message_of([&] {
        capture(sgd, {{"a", parameters[0]}, {"a", parameters[1]}});
      }),
      HasSubstr("two parameters are named \"a\""));
  optim::Adam adam(parameters);
  EXPECT_THAT(
      message_of([&] { restore(adam, capture(sgd, net.named()), net.named()); }),
      AllOf(HasSubstr("state of SGD"), HasSubstr("is Adam")));
  EXPECT_THAT(
      message_of([] { register_optimizer_state<DecayedState, optim::AdamOptions>("Again"); }),
      HasSubstr("taken by Adam"));
}

} // namespace
} // namespace tessera::state
