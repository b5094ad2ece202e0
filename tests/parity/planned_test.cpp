// A model of the user's own under every strategy that a plan may choose on this number of ranks
// equals the plain loop after 5 steps.
#include <mpi.h>

#include "tessera/autotune/plan.h"
#include "tessera/planner/candidate_text.h"

#include "tests/support/parity.h"
#include "tests/support/tiny_models.h"

namespace tessera::testing {
namespace {

constexpr int kRows = 8;

// So many devices of a data sheet.
Cluster cluster_of_world() {
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  Cluster cluster;
  cluster.name = "test";
  cluster.kinds = {{.name = "v100", .memory_bytes = 16e9, .memory_bytes_per_s = 9e11}};
  cluster.nodes = {
      {.kind = 0, .count = ranks, .intra_bytes_per_s = 2e10, .inter_bytes_per_s = 1e9}};
  return cluster;
}

// Trains a strategy that was planned, and compares it with the plain loop.
void expect_trains_alike(const Planned& planned, const planner::Candidate& candidate) {
  Planned one = planned;
  one.found.best = {candidate};
  Config base;
  base.timeout_seconds = 60;
  base.transport_buffer_bytes = 16 << 20;
  base.allow_ranks_without_parameters = true; // a stage may be an activation alone
  const int slices = kRows / candidate.strategy.microbatch_size;
  const auto make_net = [] { return Tied(); };
  expect_equal(
      train_distributed(one.config(base), make_net, random_batches(kRows), 5),
      train_plain(make_net, random_batches(kRows), 5, slices),
      planner::headline(candidate.strategy));
}

Planned planned_on_world() {
  PlanOptions options;
  options.search.keep = 100;
  const Batch batch = random_batches(kRows)(0);
  return plan(
      [] { return Tied(); },
      [](Tied& net, const at::Tensor& x, const at::Tensor& y) { return squared(net(x), y); },
      std::make_tuple(batch.x, batch.y),
      cluster_of_world(),
      options);
}

TEST(Planned, EveryStrategyTrainsLikeOneProcess) {
  const Planned planned = planned_on_world();
  bool pipeline = false;
  for (const planner::Candidate& candidate : planned.found.best) {
    pipeline = pipeline || candidate.strategy.pp > 1;
    expect_trains_alike(planned, candidate);
  }
  EXPECT_TRUE(pipeline);
}

// Whether or not they are faster here.
TEST(Planned, StagesInTurnsTrainLikeOneProcess) {
  const Planned planned = planned_on_world();
  const int layers = static_cast<int>(planned.model.layers.size());
  int trained = 0;
  for (planner::Candidate candidate : planned.found.best) {
    cost::Strategy& strategy = candidate.strategy;
    const int turns = strategy.pp > 1 ? layers / strategy.pp : 1;
    if (turns < 2 || strategy.stages_per_rank > 1) {
      continue;
    }
    strategy.stages_per_rank = turns;
    strategy.boundaries.clear();
    for (int stage = 0; stage <= strategy.stages(); ++stage) {
      strategy.boundaries.push_back(layers * stage / strategy.stages());
    }
    expect_trains_alike(planned, candidate);
    ++trained;
  }
  EXPECT_GT(trained, 0);
}

} // namespace
} // namespace tessera::testing
