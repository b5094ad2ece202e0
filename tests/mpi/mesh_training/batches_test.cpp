// Ranks that bring batches of other sizes to a mesh than they may learn what to write, all of them,
// and the steps after it are as if it had not been.
#include <chrono>

#include <gmock/gmock.h>

#include "tests/mpi/mesh_training/support.h"

namespace tessera::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// An update; before it, where `refused` is given, a step whose last tp rank brings fewer samples.
TensorMap trained(const Layout& layout, std::string* refused) {
  init(config_of(layout));
  const Ended ended;
  torch::manual_seed(7);
  const DistributedModel model(made_gpt());
  DistributedOptimizer optimizer(
      torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(1.0)));
  auto train_step = token_step(model);
  if (refused != nullptr) {
    const Batch mine = tokens_here(1);
    // Every mesh row takes as many of a prescaled batch.
    const std::int64_t fewer = kMicrobatches * (layout.prescaled ? 2 : 1);
    const std::int64_t rows = mine.x.size(0) - (tp_rank() == tp_size() - 1 ? fewer : 0);
    const auto start = std::chrono::steady_clock::now();
    *refused = error_of<UserError>(
        [&] { train_step(mine.x.narrow(0, 0, rows), mine.y.narrow(0, 0, rows)); });
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << layout.text();
    const auto texts = allgather(*refused);
    EXPECT_EQ(texts, std::vector<std::string>(texts.size(), *refused)) << layout.text();
    optimizer.zero_grad();
  }
  const Batch mine = tokens_here(0);
  train_step(mine.x, mine.y);
  optimizer.step();
  return model.state_dict();
}

TEST(MeshBatches, OfAnotherSizeOnOneRankAreAnErrorOnAll) {
  for (const Layout& layout : meshes()) {
    std::string text;
    const TensorMap after = trained(layout, &text);
    EXPECT_THAT(
        text,
        AllOf(
            HasSubstr(" brings "),
            HasSubstr(layout.prescaled ? "prescaled_batch" : "\"tensor_parallel_kind\": \"1d\"")))
        << layout.text();
    expect_state(after, trained(layout, nullptr), layout.text(), 1e-6);
  }
}

} // namespace
} // namespace tessera::testing
