// An exception anywhere in a step is a UserError on every rank, and the steps
// after it are as if it had not been.
#include <memory>
#include <stdexcept>
#include <vector>

#include <gmock/gmock.h>

#include "tessera/autograd/weight_gradient.h"

#include "tests/mpi/runtime/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

enum class Place { kNone, kForward, kBackward, kAddition, kStepFunction, kOneReplica };
Place g_place = Place::kNone;

void explode() {
  throw std::runtime_error("planted fault");
}

/// x, with a backward that throws.
struct BrokenBackward : torch::autograd::Function<BrokenBackward> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*,
      torch::autograd::variable_list) {
    explode();
    return {};
  }
};

struct FaultyImpl : torch::nn::Module {
  FaultyImpl() {
    inner = register_module("inner", Block());
    for (const torch::Tensor& parameter : inner->parameters()) {
      if (parameter.dim() == 2) {
        accumulators_.push_back(torch::autograd::impl::grad_accumulator(parameter));
        accumulators_.back()->add_post_hook(
            std::make_unique<AdditionHook>(accumulators_.back().get(), [] {
              if (g_place == Place::kAddition) {
                explode();
              }
            }));
      }
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (g_place == Place::kForward && !is_tracing()) {
      explode();
    }
    if (g_place == Place::kOneReplica && dp_rank() == dp_size() - 1) {
      explode();
    }
    auto y = inner(x);
    return g_place == Place::kBackward ? BrokenBackward::apply(y) : y;
  }
  Block inner{nullptr};

 private:
  // A hook lives as long as its node.
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
};
TESSERA_MODULE(Faulty);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    a = register_module("a", Block());
    faulty = register_module("faulty", Faulty());
    b = register_module("b", Block());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return b(faulty(a(x)));
  }
  Block a{nullptr};
  Faulty faulty{nullptr};
  Block b{nullptr};
};
TESSERA_MODULE(Net);

struct Case {
  std::string name;
  Place place;
  std::string module; // the message names it
};

// The fault is planted in step `at` of four; that step's batch is then lost.
Trained train_with_fault(const Config& config, const Case& fault, int at) {
  init(config);
  const Ended ended;
  Trained result;
  torch::manual_seed(rdp_rank() == 0 ? 7 : 8);
  DistributedModel model{Net()};
  DistributedOptimizer optimizer = sgd(model.parameters());
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    if (g_place == Place::kStepFunction) {
      explode();
    }
    auto loss = torch::mse_loss(model(x), y);
    model.backward(loss);
    return loss;
  });
  // The last pp rank holds the faulty module, or runs the step function.
  const int last = config.pipeline_parallel_degree - 1;
  for (int step = 0; step < 4; ++step) {
    const Batch mine = mine_of(random_batches()(step));
    optimizer.zero_grad();
    if (step == at) {
      g_place = fault.place;
      const std::string text = error_of<UserError>([&] { train_step(mine.x, mine.y); });
      g_place = Place::kNone;
      EXPECT_THAT(text, HasSubstr("planted fault")) << fault.name;
      EXPECT_THAT(text, HasSubstr(fault.module)) << fault.name;
      EXPECT_THAT(text, HasSubstr("microbatch ")) << fault.name;
      // Origin: the first failing replica, told by its rank.
      const int origin = fault.place == Place::kStepFunction ? 0 : group_ranks(Group::kPP).at(last);
      const auto origins = allgather(origin);
      const int rank = fault.place == Place::kOneReplica ? origins.back() : origins.front();
      EXPECT_THAT(text, HasSubstr(str("rank ", rank, ", "))) << fault.name;
      const auto texts = allgather(text);
      EXPECT_EQ(texts, std::vector<std::string>(texts.size(), text));
      continue;
    }
    const double loss = train_step(mine.x, mine.y).reduce_mean().item<double>();
    optimizer.step();
    double mean = 0;
    for (const double value : allgather(loss, Group::kDP)) {
      mean += value / dp_size();
    }
    result.losses.push_back(mean);
  }
  result.parameters = model.state_dict();
  return result;
}

void check_recovery(int pp, int microbatches, const Case& fault, int at) {
  const Config config = placed(pp, microbatches, {{"faulty", pp - 1}});
  const auto good_batches = [at](int i) { return random_batches()(i < at ? i : i + 1); };
  const auto wanted =
      train_plain([] { return Net(); }, good_batches, 3, microbatches * (world_size() / pp));
  const auto got = train_with_fault(config, fault, at);
  expect_equal(got, wanted, str(fault.name, ", pp ", pp, ", step ", at));
}

class Errors : public ::testing::TestWithParam<int> {
 protected:
  static int pp() {
    return GetParam();
  }
  static int microbatches() {
    return pp() == 1 ? 2 : 4;
  }
  // Without a pipeline all of the model is part of the step function.
  static std::string faulty() {
    return pp() == 1 ? "step function" : "module 'faulty'";
  }
};

TEST_P(Errors, InRemoteForward) {
  const Case fault{"forward", Place::kForward, faulty()};
  check_recovery(pp(), microbatches(), fault, 1);
  check_recovery(pp(), 1, fault, 0);
}

TEST_P(Errors, InRemoteBackward) {
  check_recovery(pp(), microbatches(), {"backward", Place::kBackward, faulty()}, 2);
}

// A weight's gradient, which a pipeline puts off until the caller has its
// answer.
TEST_P(Errors, AfterTheAnswerOfABackward) {
  check_recovery(pp(), microbatches(), {"addition", Place::kAddition, faulty()}, 2);
}

TEST_P(Errors, InStepFunction) {
  check_recovery(pp(), microbatches(), {"step", Place::kStepFunction, "step function"}, 1);
}

TEST_P(Errors, OnOneReplica) {
  if (world_size() == pp()) {
    GTEST_SKIP() << "needs data parallelism";
  }
  check_recovery(pp(), microbatches(), {"replica", Place::kOneReplica, faulty()}, 1);
}

INSTANTIATE_TEST_SUITE_P(Degrees, Errors, ::testing::Values(1, 2));

TEST(Errors, WhileTracing) {
  Config config = config_of(2, 2);
  init(config);
  const Ended ended;
  torch::manual_seed(1);
  DistributedModel model{Net()};
  g_place = Place::kStepFunction;
  auto forward = tessera::step([&](torch::Tensor x) {
    if (g_place == Place::kStepFunction) {
      explode();
    }
    return model(x);
  });
  const torch::NoGradGuard no_grad;
  const auto x = torch::ones({4, kWidth});
  const std::string text = error_of<UserError>([&] { forward(x); });
  EXPECT_THAT(text, HasSubstr("planted fault"));
  EXPECT_THAT(text, HasSubstr("rank 0, the step function, microbatch 0, while it is traced"));
  EXPECT_FALSE(model.partitioned());
  g_place = Place::kNone;
  EXPECT_EQ(forward(x).concat().sizes(), x.sizes());
  EXPECT_TRUE(model.partitioned());
}

// A script may treat a remote error as its own.
TEST(Errors, CaughtInTheStepFunction) {
  init(placed(2, 2, {{"faulty", 1}}));
  const Ended ended;
  torch::manual_seed(1);
  DistributedModel model{Net()};
  auto forward = tessera::step([&](torch::Tensor x) {
    try {
      return model(x);
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("module 'faulty'"));
      return torch::full_like(x, -1);
    }
  });
  const torch::NoGradGuard no_grad;
  const auto x = torch::ones({4, kWidth});
  g_place = Place::kForward;
  const auto failed = forward(x).concat();
  g_place = Place::kNone;
  EXPECT_TRUE(failed.equal(torch::full_like(x, -1)));
  EXPECT_FALSE(forward(x).concat().equal(failed));
}

// The owner cannot show its caller what it changed in place.
struct InPlaceImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    return x.add_(1);
  }
};
TESSERA_MODULE(InPlace);

struct InPlaceNetImpl : torch::nn::Module {
  InPlaceNetImpl() {
    a = register_module("a", InPlace());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return a(x * 1);
  }
  InPlace a{nullptr};
};
TESSERA_MODULE(InPlaceNet);

TEST(Errors, InputChangedInPlace) {
  init(placed(2, 1, {{"a", 1}}));
  const Ended ended;
  DistributedModel model{InPlaceNet()};
  auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
  const std::string text = error_of<UserError>([&] { forward(torch::ones({2, kWidth})); });
  EXPECT_THAT(text, HasSubstr("module 'a'"));
  EXPECT_THAT(text, HasSubstr("changed one of its inputs in place"));
}

TEST(Errors, CallsOutsideAStep) {
  init(config_of(2, 1));
  const Ended ended;
  torch::manual_seed(1);
  DistributedModel model{Net()};
  const auto x = torch::ones({2, kWidth});
  EXPECT_THAT(error_of<UserError>([&] { model(x); }), HasSubstr("outside a step"));
  EXPECT_THAT(error_of<UserError>([&] { model.backward(x.sum()); }), HasSubstr("outside a step"));
  // A graph that is kept beyond its step cannot reach the other ranks.
  StepOptions keep;
  keep.detach_outputs = false;
  auto forward = tessera::step([&](torch::Tensor in) { return model(in).sum(); }, keep);
  const auto kept = forward(x);
  if (pp_rank() == 0) {
    EXPECT_TRUE(kept[0].requires_grad());
    EXPECT_THAT(
        error_of<UserError>([&] { kept[0].backward(); }),
        HasSubstr("must be called inside a step"));
  }
}

TEST(Errors, SecondBackwardThroughOneCall) {
  init(placed(2, 1, {{"b", 1}}));
  const Ended ended;
  torch::manual_seed(1);
  DistributedModel model{Net()};
  auto twice = tessera::step([&](torch::Tensor x) {
    auto out = model(x);
    model.backward(out.sum());
    model.backward(out.mean());
  });
  const std::string text = error_of<UserError>([&] { twice(torch::ones({2, kWidth})); });
  EXPECT_THAT(text, HasSubstr("a second time in one step"));
}

} // namespace
} // namespace tessera::testing
