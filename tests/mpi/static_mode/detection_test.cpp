// Static mode repeats recorded steps; what a script then does otherwise is an
// error on every rank, and the next step may follow.
#include <gmock/gmock.h>

#include "tessera/context/context.h"

#include "tests/mpi/runtime/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kRecorded = 2;

/// A chain whose way can be changed from outside.
struct ChainImpl : torch::nn::Module {
  ChainImpl() {
    first = register_module("first", Block());
    second = register_module("second", Block());
    third = register_module("third", Block());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (way == "other") {
      return first(third(x));
    }
    torch::Tensor h;
    try {
      h = first(way == "swallowed" ? x.narrow(0, 0, 1) : x);
    } catch (const UserError&) {
      h = x; // the other ranks must not wait for what never comes
    }
    h = second(h);
    if (way == "shorter") {
      return h;
    }
    h = third(h);
    if (way == "longer") {
      h = first(h);
    }
    return h;
  }
  Block first{nullptr}, second{nullptr}, third{nullptr};
  std::string way;
};
TESSERA_MODULE(Chain);

Config placed_chain() {
  return placed(2, 2, {{"first", 1}, {"second", 0}, {"third", 1}});
}

Config static_chain() {
  Config config = placed_chain();
  config.static_mode = true;
  config.static_mode_steps = kRecorded;
  return config;
}

// Trains up to the static steps, then calls `change(step, model)`.
template <typename Change>
void in_static_steps(const Change& change) {
  init(static_chain());
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model(Chain{});
  auto optimizer = sgd(model.parameters());
  auto step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto loss = torch::mse_loss(model(x), y);
    model.backward(loss);
    return loss;
  });
  const auto batch_of = [](int number) { return mine_of(random_batches(4 * dp_size())(number)); };
  const auto train = [&](const Batch& batch) {
    optimizer.zero_grad();
    const torch::Tensor loss = step(batch.x, batch.y).reduce_mean();
    optimizer.step();
    return loss.template item<double>();
  };
  for (int i = 0; i < kRecorded + 1; ++i) {
    train(batch_of(i));
  }
  change(model, train, batch_of);
}

template <typename Run>
void expect_refused(const Run& run, const std::vector<std::string>& words) {
  const std::string text = error_of<UserError>(run);
  for (const std::string& word : words) {
    EXPECT_THAT(text, HasSubstr(word));
  }
  EXPECT_THAT(text, HasSubstr("\"static_mode\": false"));
}

TEST(StaticMode, AChangedShapeIsExplainedAndTheNextStepIsFine) {
  in_static_steps([](auto& model, const auto& train, const auto& batch_of) {
    (void)model;
    const Batch wide = batch_of(9);
    const Batch narrow{wide.x.narrow(0, 0, 2), wide.y.narrow(0, 0, 2)};
    expect_refused(
        [&] { train(narrow); },
        {"the arguments of module 'first'",
         "microbatch 0",
         "float32 [1, 8] where float32 [2, 8] was recorded"});
    EXPECT_GT(train(batch_of(10)), 0);
  });
}

TEST(StaticMode, AChangedTypeIsExplained) {
  in_static_steps([](auto& model, const auto& train, const auto& batch_of) {
    (void)model;
    const Batch batch = batch_of(9);
    expect_refused(
        [&] {
          train({batch.x.to(torch::kDouble), batch.y});
        },
        {"float64 [2, 8] where float32 [2, 8] was recorded"});
  });
}

TEST(StaticMode, AChangedWayIsExplained) {
  const std::map<std::string, std::vector<std::string>> ways = {
      {"other", {"it called module 'third'", "where"}},
      {"longer", {"module 'first'", "no recorded step did"}},
      {"shorter", {"was called at another place than recorded"}},
      {"swallowed", {"float32 [1, 8] where float32 [2, 8] was recorded"}},
  };
  in_static_steps([&](auto& model, const auto& train, const auto& batch_of) {
    for (const auto& [way, words] : ways) {
      model.net()->way = way;
      expect_refused([&] { train(batch_of(9)); }, words);
      model.net()->way.clear();
      EXPECT_GT(train(batch_of(10)), 0) << way;
    }
  });
}

TEST(StaticMode, AnErrorOfUserCodeReachesEveryRank) {
  in_static_steps([](auto& model, const auto& train, const auto& batch_of) {
    auto& block = *model.net()->third;
    const auto hidden = block.b;
    block.b = nn::Linear(3, kWidth); // where it runs, shapes do not fit
    const std::string text = error_of<UserError>([&] { train(batch_of(9)); });
    EXPECT_THAT(text, HasSubstr("module 'third'"));
    block.b = hidden;
    EXPECT_GT(train(batch_of(10)), 0);
  });
}

// Text that is generated grows: such a step is left alone.
TEST(StaticMode, AStepMayBeTakenOut) {
  init(static_chain());
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model(Chain{});
  auto step =
      tessera::step([&](torch::Tensor x) { return model(x).sum(); }, {.static_mode = false});
  for (int rows = 2; rows < 12; rows += 2) {
    EXPECT_EQ(step(torch::ones({rows, kWidth})).outputs().size(), 2U);
  }
}

TEST(StaticMode, DataDependentFlowIsRefused) {
  Config config = placed(2, 4, {{"left", 1}, {"right", 1}});
  config.static_mode = true;
  config.static_mode_steps = 4;
  const std::string text = error_of<UserError>([&] {
    train_distributed(
        config, [] { return Control(); }, random_batches(), 6);
  });
  EXPECT_THAT(text, HasSubstr("the recorded steps took different paths"));
  EXPECT_THAT(text, HasSubstr("microbatch"));
  EXPECT_THAT(text, HasSubstr("\"static_mode\": false"));
}

// Evaluation has its own flow and its own recording.
TEST(StaticMode, KindsOfStepsAreKeptApart) {
  Config config = static_chain();
  config.microbatches = 2;
  init(config);
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model(Chain{});
  Chain plain;
  auto step = tessera::step([&](torch::Tensor x) {
    auto loss = model(x).pow(2).mean();
    if (torch::GradMode::is_enabled()) {
      model.backward(loss);
    }
    return loss;
  });
  for (int i = 0; i < 5; ++i) {
    const Batch batch = mine_of(random_batches(4 * dp_size())(i));
    const double with = step(batch.x).reduce_mean().item<double>();
    const torch::NoGradGuard no_grad;
    const double without = step(batch.x).reduce_mean().item<double>();
    EXPECT_DOUBLE_EQ(with, without) << i;
  }
}

// Losses of a run whose first block is frozen, comes back and is frozen again.
std::vector<double> losses_of_thawing(Config config) {
  init(std::move(config));
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model(Chain{});
  auto optimizer = sgd(model.parameters());
  auto step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto loss = torch::mse_loss(model(x), y);
    model.backward(loss);
    return loss;
  });
  const auto train = [&](bool thawed, int steps) {
    for (const auto& parameter : model.net()->first->named_parameters()) {
      parameter.value().set_requires_grad(thawed);
    }
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i) {
      const Batch batch = mine_of(random_batches(4 * dp_size())(i));
      optimizer.zero_grad();
      losses.push_back(step(batch.x, batch.y).reduce_mean().item<double>());
      optimizer.step();
    }
    return losses;
  };
  std::vector<double> losses = train(false, kRecorded + 2);
  for (const auto& [thawed, steps] : {std::pair(true, kRecorded + 2), std::pair(false, 2)}) {
    const std::vector<double> more = train(thawed, steps);
    losses.insert(losses.end(), more.begin(), more.end());
  }
  return losses;
}

// Public scripts train a head first and thaw the rest after some epochs.
TEST(StaticMode, FrozenParametersThatComeBackAreRecordedAnew) {
  const std::vector<double> wanted = losses_of_thawing(placed_chain());
  for (const bool fast : {false, true}) {
    Config config = static_chain();
    config.fast_mode = fast;
    const std::vector<double> repeated = losses_of_thawing(config);
    ASSERT_EQ(repeated.size(), wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_NEAR(repeated[i], wanted[i], 1e-6) << "fast " << fast << ", step " << i;
    }
  }
}

// Tensors and one end message for each further rank; nothing else.
TEST(StaticMode, OnlyTensorsTravel) {
  init(static_chain());
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model(Chain{});
  auto step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto loss = torch::mse_loss(model(x), y);
    model.backward(loss);
    return loss;
  });
  const auto sent = [] {
    std::int64_t messages = 0;
    for (const std::int64_t one :
         allgather(context().transport->counters().messages_sent, Group::kPP)) {
      messages += one;
    }
    return messages;
  };
  std::vector<std::int64_t> counts;
  for (int i = 0; i < kRecorded + 2; ++i) {
    const Batch batch = mine_of(random_batches(4 * dp_size())(i));
    const std::int64_t before = sent();
    step(batch.x, batch.y);
    barrier();
    counts.push_back(sent() - before);
  }
  // 2 microbatches; calls of first and third; x needs no gradient.
  EXPECT_EQ(counts.front(), 2 * 2 * 4 + 1);
  EXPECT_EQ(counts.back(), 2 * (2 * 4 - 1) + 1 + 1);
}

} // namespace
} // namespace tessera::testing
