// A running pipeline starts what its schedule says, and no more microbatches at one time than it
// may: plain steps, and steps that static mode repeats.
#include <gmock/gmock.h>

#include "tests/mpi/order/support.h"

namespace tessera::testing {
namespace {

constexpr int kMicrobatches = 6;
constexpr int kActive = 3;

/// Answers after a while that differs from call to call.
struct DawdlingImpl : torch::nn::Module {
  DawdlingImpl() {
    layer = register_module("layer", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (!is_tracing()) {
      static int calls = 0;
      sleep_ms(1 + 2 * (calls++ % 3));
    }
    return torch::tanh(layer(x));
  }
  nn::Linear layer{nullptr};
};
TESSERA_MODULE(Dawdling);

/// The root asks another rank twice in a forward.
struct TwiceAwayImpl : torch::nn::Module {
  TwiceAwayImpl() {
    far = register_module("far", Dawdling());
    near = register_module("near", Block());
    last = register_module("last", Dawdling());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(near(far(x)));
  }
  Dawdling far{nullptr}, last{nullptr};
  Block near{nullptr};
};
TESSERA_MODULE(TwiceAway);

Config config_for(const std::string& pipeline, bool repeated) {
  const int pp = world_size();
  Config config =
      placed(pp, kMicrobatches, {{"far", 1}, {"near", pp > 2 ? 2 : 0}, {"last", pp - 1}});
  config.pipeline = pipeline;
  config.active_microbatches = kActive;
  config.static_mode = repeated;
  if (repeated) {
    config.static_mode_steps = 2;
  }
  return config;
}

/// What pp rank 0 saw of each of five steps, nothing on other ranks; `check` runs before each
/// start.
template <typename Check>
std::vector<Watch> steps_of(const Config& config, const Check& check) {
  init(config);
  const Ended ended;
  torch::manual_seed(3);
  DistributedModel model{TwiceAway()};
  Watch watch;
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor number) {
    return watched(
        model,
        watch,
        number,
        [&] { return model(x).pow(2).mean(); },
        [&](int microbatch, Phase phase) {
          check(watch, Action{microbatch, phase});
        });
  });
  std::vector<Watch> seen;
  for (int i = 0; i < 5; ++i) {
    watch = {};
    train_step(torch::ones({2 * kMicrobatches, kWidth}), numbers_of(kMicrobatches));
    if (pp_rank() == 0) {
      seen.push_back(watch);
    } else {
      EXPECT_TRUE(watch.starts.empty()) << "pp rank " << pp_rank() << " ran the step function";
    }
  }
  return seen;
}

/// The most microbatches of any step, where this rank saw some.
void expect_most(const std::vector<Watch>& seen, std::size_t Watch::*most, std::size_t wanted) {
  std::size_t found = 0;
  for (const Watch& watch : seen) {
    found = std::max(found, watch.*most);
  }
  EXPECT_EQ(found, seen.empty() ? 0 : wanted);
}

class Schedules : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(, Schedules, ::testing::Bool(), [](const auto& of) {
  return of.param ? "Repeated" : "Dynamic";
});

TEST_P(Schedules, SimpleStartsNoBackwardBeforeTheLastForwardHasEnded) {
  const auto seen =
      steps_of(config_for("simple", GetParam()), [](Watch& watch, const Action& action) {
        const auto backward = [](const Action& started) {
          return started.phase == Phase::kBackward;
        };
        const bool first = std::none_of(watch.starts.begin(), watch.starts.end(), backward);
        if (backward(action) && first && watch.ready.size() != kMicrobatches) {
          watch.broken.push_back(schedule::to_text({action}));
        }
      });
  for (const Watch& watch : seen) {
    EXPECT_EQ(schedule::to_text(watch.starts), "0F 1F 2F 3F 4F 5F 0B 1B 2B 3B 4B 5B");
    EXPECT_THAT(watch.broken, ::testing::IsEmpty());
  }
  expect_most(seen, &Watch::most_running, kActive); // phases, since all microbatches are open
}

TEST_P(Schedules, InterleavedPrefersTheLowestBackward) {
  const auto seen =
      steps_of(config_for("interleaved", GetParam()), [](Watch& watch, const Action& action) {
        const bool right = action.phase == Phase::kForward
                               ? watch.ready.empty()
                               : !watch.ready.empty() && action.microbatch == *watch.ready.begin();
        if (!right) {
          watch.broken.push_back(schedule::to_text({action}));
        }
      });
  for (const Watch& watch : seen) {
    EXPECT_EQ(watch.starts.size(), 2U * kMicrobatches);
    EXPECT_THAT(watch.broken, ::testing::IsEmpty()) << schedule::to_text(watch.starts);
    std::vector<int> forwards;
    for (const Action& action : watch.starts) {
      if (action.phase == Phase::kForward) {
        forwards.push_back(action.microbatch);
      }
    }
    EXPECT_THAT(forwards, ::testing::ElementsAre(0, 1, 2, 3, 4, 5));
  }
  expect_most(seen, &Watch::most_open, kActive);
}

TEST_P(Schedules, CustomStartsExactlyItsOrder) {
  Config config = config_for("custom", GetParam());
  // Neither of the others: a backward waits although it is ready, the numbers do not ascend.
  config.custom_schedule = "2F 0F 1F 1B 0B 3F 5F 5B 2B 3B 4F 4B";
  const auto seen = steps_of(config, [](Watch&, const Action&) {});
  for (const Watch& watch : seen) {
    EXPECT_EQ(schedule::to_text(watch.starts), *config.custom_schedule);
  }
  expect_most(seen, &Watch::most_open, kActive);
}

TEST(Schedule, TheDefaultCapIsTwoMoreThanTheRanks) {
  Config config = config_for("interleaved", false);
  config.pipeline_parallel_degree = 2;
  config.partition = {{"far", 1}, {"last", 1}};
  config.ddp = world_size() > 2;
  config.active_microbatches = {};
  expect_most(steps_of(config, [](Watch&, const Action&) {}), &Watch::most_open, 4);
}

} // namespace
} // namespace tessera::testing
