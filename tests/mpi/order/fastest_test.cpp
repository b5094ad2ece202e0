// Static mode repeats the order of the fastest recorded step, whatever order would come about
// later.
#include <gmock/gmock.h>

#include "tests/mpi/order/support.h"

namespace tessera::testing {
namespace {

constexpr int kRecordedMicrobatches = 4;
constexpr int kSteps = 3; // recorded

/// How a step is made to run. "early": answers come while the root is in the next forward, so the
/// first backward comes soon. "late": all forwards start before the first answer.
struct Pattern {
  bool early;
  double pause; // at its end, where it changes no order; milliseconds
};

struct FarImpl : torch::nn::Module {
  FarImpl() {
    layer = register_module("layer", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (!is_tracing()) {
      sleep_ms(pattern.early ? 0 : 25);
    }
    return torch::tanh(layer(x));
  }
  nn::Linear layer{nullptr};
  Pattern pattern{};
};
TESSERA_MODULE(Far);

struct RootImpl : torch::nn::Module {
  RootImpl() {
    far = register_module("far", Far());
    near = register_module("near", Block());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return near(far(x));
  }
  Far far{nullptr};
  Block near{nullptr};
};
TESSERA_MODULE(Root);

/// The starts of each step on pp rank 0.
std::vector<std::string> starts_of(const Config& config, const std::vector<Pattern>& patterns) {
  init(config);
  const Ended ended;
  torch::manual_seed(3);
  Root root;
  DistributedModel model{root};
  Watch watch;
  Pattern pattern{};
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor number) {
    return watched(
        model,
        watch,
        number,
        [&] { return model(x).pow(2).mean(); },
        [&](int microbatch, Phase phase) {
          if (phase == Phase::kForward) {
            sleep_ms(pattern.early ? 25 : 0);
          } else if (microbatch == kRecordedMicrobatches - 1) {
            sleep_ms(pattern.pause);
          }
        });
  });
  std::vector<std::string> starts;
  for (const Pattern& next : patterns) {
    pattern = root->far->pattern = next;
    watch = {};
    train_step(torch::ones({2 * kRecordedMicrobatches, kWidth}), numbers_of(kRecordedMicrobatches));
    starts.push_back(schedule::to_text(watch.starts));
  }
  return starts;
}

Config static_config(bool fast_mode) {
  Config config = placed(2, kRecordedMicrobatches, {{"far", 1}});
  config.active_microbatches = kRecordedMicrobatches;
  config.static_mode = true;
  config.static_mode_steps = kSteps;
  config.fast_mode = fast_mode;
  return config;
}

/// Records steps that run as `patterns` say, the fastest of them at `fastest`. Two more steps run
/// the other way, and must have the order of the fastest.
void expect_repeated(std::vector<Pattern> patterns, std::size_t fastest, bool fast_mode) {
  const Pattern other{!patterns[fastest].early, 0};
  const std::size_t recorded = patterns.size();
  patterns.insert(patterns.end(), {other, other});
  const auto starts = starts_of(static_config(fast_mode), patterns);
  if (starts[0].empty()) {
    return; // no root
  }
  for (std::size_t i = 0; i < recorded; ++i) {
    if (patterns[i].early != patterns[fastest].early) {
      ASSERT_NE(starts[i], starts[fastest]) << "the pauses did not make two orders";
    }
  }
  EXPECT_EQ(starts[recorded], starts[fastest]);
  EXPECT_EQ(starts[recorded + 1], starts[fastest]);
}

constexpr Pattern kEarly{true, 0};
constexpr Pattern kLate{false, 0};
constexpr Pattern kSlowEarly{true, 400};
constexpr Pattern kSlowLate{false, 400};

TEST(StaticMode, RepeatsTheFastestStepNotTheFirst) {
  expect_repeated({kSlowLate, kEarly, kSlowLate}, 1, false);
}

TEST(StaticMode, RepeatsTheFastestStepNotTheLast) {
  expect_repeated({kLate, kSlowEarly, kSlowEarly}, 0, false);
}

TEST(StaticMode, RepeatsTheFastestStepNotTheOneWithTheEarliestBackward) {
  expect_repeated({kSlowEarly, kSlowEarly, kLate}, 2, false);
}

// Fast mode has a step before them in which it looks who reads what. It may be the fastest of all,
// but its order is not one of the recorded.
TEST(StaticMode, TheVerifyingStepOfFastModeIsNotRepeated) {
  expect_repeated({kEarly, {true, 800}, kSlowLate, {true, 800}}, 2, true);
}

} // namespace
} // namespace tessera::testing
