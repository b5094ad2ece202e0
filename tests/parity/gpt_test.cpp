// The smallest GPT under every strategy that fits this number of ranks equals
// the plain loop after 5 steps: losses and every parameter.
#include "models/gpt.h"

#include <mpi.h>

#include "models/presets.h"
#include "tests/support/counting_tokens.h"

namespace tessera::testing {
namespace {

constexpr int kRows = 8;
constexpr int kTokens = 12;

models::Gpt make_gpt() {
  return models::Gpt(std::get<models::GptOptions>(models::find_preset("gpt-tiny").options));
}

Batch tokens_of(int step) {
  return counting_tokens(step, kRows, kTokens, 32);
}

class Gpt : public ::testing::TestWithParam<int> {};

TEST_P(Gpt, EqualsOneProcess) {
  int world = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  const int pp = GetParam();
  const int dp = world / pp;
  if (world % pp != 0 || dp > 2) {
    GTEST_SKIP() << pp << " pipeline ranks do not fit " << world;
  }
  Config config;
  config.pipeline_parallel_degree = pp;
  config.microbatches = 4;
  config.ddp = dp > 1;
  config.timeout_seconds = 60;
  config.transport_buffer_bytes = 16 << 20;
  const auto wanted = train_plain(make_gpt, tokens_of, 5, config.microbatches * dp, token_loss);
  EXPECT_LT(wanted.losses.back(), wanted.losses.front());
  const auto got = train_distributed(config, make_gpt, tokens_of, 5, token_loss);
  expect_equal(got, wanted, str("pp ", pp, ", dp ", dp));
  if (pp > 1) {
    Config by_operations = config;
    by_operations.partition_mode = "operations";
    const auto divided = train_distributed(by_operations, make_gpt, tokens_of, 5, token_loss);
    expect_equal(divided, wanted, str("pp ", pp, ", dp ", dp, ", operations"));
    config.static_mode = true;
    config.static_mode_steps = 2;
    config.fast_mode = true;
    const auto fast = train_distributed(config, make_gpt, tokens_of, 5, token_loss);
    expect_equal(fast, wanted, str("pp ", pp, ", dp ", dp, ", fast"));
  }
}

INSTANTIATE_TEST_SUITE_P(Pipelines, Gpt, ::testing::Values(1, 2, 4));

} // namespace
} // namespace tessera::testing
