// Tables 2 and 3 of Xu et al. 2021 by simulation, and the growth of problems that sections 3.1.2
// and 5 derive.
#include <cmath>

#include <gtest/gtest.h>

#include "bench/optimus/paper.h"

namespace tessera::bench {
namespace {

// What was reached, rounded to the safe side.
constexpr double kMostError = 0.15; // of the throughput of one row
constexpr double kMedianError = 0.07;

TEST(OptimusTables, ThroughputsAreThoseOfThePaper) {
  const std::vector<OptimusRun> runs = optimus_runs(OPTIMUS_RUNS);
  const std::vector<SimulatedRun> found = simulate_runs(OPTIMUS_RUNS);
  ASSERT_EQ(runs.size(), 16u);
  std::vector<double> errors;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const double seconds = (found[i].forward + found[i].backward) / runs[i].batch;
    const double error = std::abs(seconds * runs[i].throughput - 1);
    EXPECT_LT(error, kMostError) << "table " << runs[i].table << (runs[i].mesh ? " optimus " : " ")
                                 << runs[i].devices;
    errors.push_back(error);
  }
  std::sort(errors.begin(), errors.end());
  EXPECT_LT((errors[7] + errors[8]) / 2, kMedianError);
}

TEST(OptimusTables, TheFasterSchemeOfEveryRowIsKnown) {
  const std::vector<OptimusRun> runs = optimus_runs(OPTIMUS_RUNS);
  const std::vector<SimulatedRun> found = simulate_runs(OPTIMUS_RUNS);
  int right = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (std::size_t j = 0; j < runs.size(); ++j) {
      if (runs[i].mesh || !runs[j].mesh || runs[i].table != runs[j].table ||
          runs[i].devices != runs[j].devices) {
        continue;
      }
      const auto seconds = [&](std::size_t k) {
        return (found[k].forward + found[k].backward) / runs[k].batch;
      };
      const bool mesh_wins = seconds(j) < seconds(i);
      right += mesh_wins == (runs[j].throughput > runs[i].throughput) ? 1 : 0;
      if (runs[i].table == 2) { // Optimus is ahead from 16 devices on
        EXPECT_EQ(mesh_wins, runs[i].devices >= 16) << runs[i].devices;
      }
    }
  }
  EXPECT_EQ(right, 8);
}

// Devices with nothing but products and one kind of link, on which equations 4 and 5 are exact.
cost::Cluster bare_devices(int count) {
  cost::Cluster cluster;
  cluster.kinds = {
      {.name = "device",
       .memory_bytes = 1e15,
       .memory_bytes_per_s = 1e30,
       .product_flops_per_s = 1e12}};
  cluster.nodes.assign(
      static_cast<std::size_t>(count),
      {.kind = 0,
       .count = 1,
       .intra_bytes_per_s = 1e30,
       .inter_bytes_per_s = 1e12,
       .stream_bytes_per_s = 1e9,
       .network_latency_seconds = 1e-18});
  return cluster;
}

TEST(Isoefficiency, ProblemsGrowAsThePaperDerives) {
  // W ~ h^3; Megatron: h ~ p - 1, Optimus: h ~ sqrt(p) log2(p), up to what attention adds to the
  // products, which vanishes with h.
  constexpr double kEfficiency = 0.5;
  std::vector<int> devices = {16, 64, 256, 1024, 4096};
  std::vector<double> megatron;
  std::vector<double> optimus;
  for (const int p : devices) {
    const cost::Cluster cluster = bare_devices(p);
    megatron.push_back(isoefficient_hidden(cluster, false, p, kEfficiency, 1.0 / 64));
    optimus.push_back(isoefficient_hidden(cluster, true, p, kEfficiency, 1.0 / 64));
  }
  for (std::size_t i = 1; i < devices.size(); ++i) {
    const double p = devices[i];
    const double before = devices[i - 1];
    EXPECT_NEAR(megatron[i] / megatron[i - 1], (p - 1) / (before - 1), 0.05 * p / before);
    EXPECT_NEAR(
        optimus[i] / optimus[i - 1],
        std::sqrt(p) * std::log2(p) / (std::sqrt(before) * std::log2(before)),
        0.05 * std::sqrt(p / before) * std::log2(p) / std::log2(before));
  }
  const auto exponent = [&](const std::vector<double>& hidden) { // of W in p, over the last step
    return 3 * std::log(hidden.back() / hidden[devices.size() - 2]) / std::log(4096.0 / 1024);
  };
  EXPECT_NEAR(exponent(megatron), 3, 0.05);
  EXPECT_NEAR(exponent(optimus), 1.5 + 3 * std::log(1.2) / std::log(4.0), 0.05);
}

TEST(Efficiency, LawsOfAmdahlAndGustafsonGiveTheirOwnSharesBack) {
  for (const double serial : {0.0, 0.05, 0.4}) {
    for (const int devices : {4, 64}) {
      EXPECT_NEAR(amdahl_share(amdahl(serial, devices), devices), serial, 1e-12);
      EXPECT_NEAR(gustafson_share(gustafson(serial, devices), devices), serial, 1e-12);
    }
  }
  EXPECT_NEAR(amdahl(0.1, 10), 1 / 0.19, 1e-12);
  EXPECT_NEAR(gustafson(0.1, 10), 9.1, 1e-12);
}

// Figure 7: with a fixed problem Optimus loses less of its efficiency than Megatron from device
// number to device number; with growing problems both lose, Megatron more.
TEST(Efficiency, FallsAsInFigureSeven) {
  const std::vector<OptimusRun> runs = optimus_runs(OPTIMUS_RUNS);
  const std::vector<SimulatedRun> found = simulate_runs(OPTIMUS_RUNS);
  const auto cluster =
      planner::load_cluster(std::string(OPTIMUS_RUNS) + "/cluster_frontera_rtx.json");
  const auto efficiency = [&](std::size_t i) {
    const SimulatedRun alone =
        simulate_stem(stem(runs[i].hidden), cluster, false, 1, runs[i].batch);
    return (alone.forward + alone.backward) /
           (runs[i].devices * (found[i].forward + found[i].backward));
  };
  for (const std::size_t first : {0u, 4u, 8u, 12u}) {
    for (std::size_t i = first; i < first + 4; ++i) {
      EXPECT_GT(efficiency(i), 0) << i;
      EXPECT_LT(efficiency(i), 1) << i;
      if (i > first) {
        EXPECT_LT(efficiency(i), efficiency(i - 1)) << i;
      }
    }
  }
  const auto kept = [&](std::size_t first) { return efficiency(first + 3) / efficiency(first); };
  EXPECT_GT(kept(4), kept(0)); // weak scaling
  EXPECT_GT(kept(12), kept(8)); // strong scaling
}

} // namespace
} // namespace tessera::bench
