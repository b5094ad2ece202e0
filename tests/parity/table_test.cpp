// Every small model under every strategy that fits this number of ranks equals
// the plain loop after 5 steps: losses and every parameter.
#include <mpi.h>

#include "tests/support/parity.h"
#include "tests/support/tiny_models.h"

namespace tessera::testing {
namespace {

struct Strategy {
  int pp;
  int microbatches;
  std::string schedule;
  int active;
  std::string mode = "dynamic"; // or "static", "fast"
};

int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

// pp x dp = world; schedules matter only where there is a pipeline.
std::vector<Strategy> strategies() {
  std::vector<Strategy> list;
  const int world = world_size();
  for (const int pp : {1, 2, 4}) {
    const int dp = world / pp;
    if (world % pp != 0 || dp > 2) {
      continue;
    }
    for (const int microbatches : {1, 4}) {
      if (pp == 1) {
        list.push_back({pp, microbatches, "interleaved", 0});
        continue;
      }
      for (const char* schedule : {"simple", "interleaved", "custom"}) {
        list.push_back({pp, microbatches, schedule, 0});
      }
      if (microbatches == 4) {
        list.push_back({pp, microbatches, "interleaved", 1});
        list.push_back({pp, microbatches, "simple", 2});
        for (const char* mode : {"static", "fast"}) {
          list.push_back({pp, microbatches, "interleaved", 0, mode});
          list.push_back({pp, microbatches, "custom", 0, mode});
        }
      }
    }
  }
  return list;
}

Config config_of(const Strategy& strategy) {
  Config config;
  config.pipeline_parallel_degree = strategy.pp;
  config.microbatches = strategy.microbatches;
  config.pipeline = strategy.schedule;
  config.ddp = world_size() > strategy.pp;
  config.timeout_seconds = 60;
  config.transport_buffer_bytes = 16 << 20;
  config.memory_weight = 1.0;
  config.allow_ranks_without_parameters = true; // some have fewer parts than ranks
  if (strategy.schedule == "custom") {
    config.custom_schedule = strategy.microbatches == 1 ? "0F 0B" : "1F 0F 1B 3F 0B 2F 2B 3B";
  }
  config.static_mode = strategy.mode != "dynamic";
  config.fast_mode = strategy.mode == "fast";
  config.static_mode_steps = config.static_mode ? 2 : 5;
  if (strategy.active > 0) {
    config.active_microbatches = strategy.active;
  }
  return config;
}

// Data-dependent flow is for the dynamic mode only.
template <typename MakeNet>
void check(MakeNet make_net, bool same_flow = true) {
  for (const Strategy& strategy : strategies()) {
    if (!same_flow && strategy.mode != "dynamic") {
      continue;
    }
    const Config config = config_of(strategy);
    const int slices = strategy.microbatches * (world_size() / strategy.pp);
    const auto wanted = train_plain(make_net, random_batches(), 5, slices);
    const auto got = train_distributed(config, make_net, random_batches(), 5);
    expect_equal(
        got,
        wanted,
        str("pp ",
            strategy.pp,
            ", ",
            strategy.schedule,
            ", microbatches ",
            strategy.microbatches,
            ", active ",
            strategy.active,
            ", ",
            strategy.mode));
  }
}

TEST(Parity, ReusedModule) {
  check([] { return Reused(); });
}

TEST(Parity, TiedWeights) {
  check([] { return Tied(); });
}

TEST(Parity, DataDependentControlFlow) {
  check([] { return Control(); }, false);
}

TEST(Parity, NestedInputsAndOutputs) {
  check([] { return Nested(); });
}

TEST(Parity, UnusedBranches) {
  check([] { return Unused(); });
}

} // namespace
} // namespace tessera::testing
