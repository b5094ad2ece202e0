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

TEST(Planned, EveryStrategyTrainsLikeOneProcess) {
  PlanOptions options;
  options.search.keep = 100;
  const Batch batch = random_batches(kRows)(0);
  const Planned planned = plan(
      [] { return Tied(); },
      [](Tied& net, const at::Tensor& x, const at::Tensor& y) { return squared(net(x), y); },
      std::make_tuple(batch.x, batch.y),
      cluster_of_world(),
      options);
  bool pipeline = false;
  for (const planner::Candidate& candidate : planned.found.best) {
    Planned one = planned;
    one.found.best = {candidate};
    Config base;
    base.timeout_seconds = 60;
    base.transport_buffer_bytes = 16 << 20;
    base.allow_ranks_without_parameters = true; // a stage may be an activation alone
    const Config config = one.config(base);
    pipeline = pipeline || config.pipeline_parallel_degree > 1;
    const cost::Strategy& strategy = candidate.strategy;
    const int slices = kRows / strategy.microbatch_size;
    const auto make_net = [] { return Tied(); };
    expect_equal(
        train_distributed(config, make_net, random_batches(kRows), 5),
        train_plain(make_net, random_batches(kRows), 5, slices),
        planner::headline(strategy));
  }
  EXPECT_TRUE(pipeline);
}

} // namespace
} // namespace tessera::testing
