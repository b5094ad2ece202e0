#pragma once

// The experiments of the AMP paper (Li et al. 2022, section 4), predicted. Header only:
// `planner_amp` and the test of accuracy.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/files.h"
#include "tessera/planner/description.h"
#include "tessera/planner/judgement.h"
#include "tessera/planner/rank_correlation.h"
#include "tessera/planner/search.h"
#include "tessera/planner/strategies_csv.h"
#include "tessera/simulator/simulate.h"

#include "bench/planner/amp_study.h"
#include "bench/planner/row_strategy.h"

namespace tessera::bench {

/// One setup of section 4.3.
struct AmpSetup {
  cost::DescribedModel model;
  cost::Cluster cluster;
};

/// Loads a setup: the models are "gpt2" and "transgan", the clusters "homogeneous",
/// "heterogeneous" and "p3". Throws: ConfigError.
inline AmpSetup
amp_setup(const std::string& folder, const std::string& model, const std::string& cluster) {
  return {
      planner::load_model(folder + "/model_" + model + ".json"),
      planner::load_cluster(folder + "/cluster_" + cluster + ".json")};
}

/// Prices the 52 strategies that the paper ran on the homogeneous cluster.
inline planner::PricedTable amp_runs(
    const std::string& folder,
    const cost::Constants& constants = {},
    const std::function<void(cost::Cluster&)>& change = [](cost::Cluster&) {}) {
  AmpSetup setup = amp_setup(folder, "gpt2", "homogeneous");
  change(setup.cluster);
  const std::string path = folder + "/measured_homogeneous.csv";
  return planner::price_rows(read_file(path), path, setup.model, setup.cluster, constants);
}

/// The order's correlation as reached, rounded down; the paper's own estimate has 0.935.
inline constexpr double kAmpSpearman = 0.9625;

/// Returns every limit that the 52 runs break, in words; empty: none.
inline std::vector<std::string> broken_amp_limits(const planner::PricedTable& table) {
  const planner::Judgement verdict = planner::judge(table, [](const auto&) { return true; });
  std::vector<std::string> broken;
  const auto check = [&](const char* what, double value, bool holds) {
    if (!holds) {
      broken.push_back(str("AMP's runs: ", what, " is ", value));
    }
  };
  check("Spearman", verdict.spearman, verdict.spearman >= kAmpSpearman);
  check("the regret", verdict.regret, verdict.regret == 0);
  check("the number of refused runs", verdict.refused, verdict.refused == 0);
  check("the number of accepted runs", verdict.accepted, verdict.accepted == 0);
  check("the median error", verdict.median_error, verdict.median_error < 0.27);
  check("the ninth decile", verdict.worst_decile_error, verdict.worst_decile_error < 0.37);
  // What the runs that finished need at most, and those that failed at least; a device has 15 GiB.
  double finished = 0;
  double failed = std::numeric_limits<double>::infinity();
  for (const planner::PricedRow& row : table.rows) {
    const double gib = row.cost.needed_bytes() / (1 << 30);
    if (std::isinf(std::stod(table.cell(row, "measured_s")))) {
      failed = std::min(failed, gib);
    } else {
      finished = std::max(finished, gib);
    }
  }
  check("what finished runs need", finished, finished > 14.36 && finished < 14.38);
  check("what failed runs need", failed, failed > 15.31 && failed < 15.33);
  return broken;
}

/// Returns the strategies that one method of section 4.5 proposes; seed 0.
inline planner::SearchResult amp_method(const AmpSetup& setup, planner::Method method) {
  planner::SearchOptions options;
  options.method = method;
  options.keep = method == planner::Method::kRandom ? 50 : 10;
  return planner::search(setup.model, setup.cluster, options);
}

/// Returns the predicted least, mean and deviation of a method's ten best (tables 3 to 5).
inline TopTen amp_top_ten(const AmpSetup& setup, planner::Method method) {
  std::vector<double> seconds;
  for (const planner::Candidate& one : amp_method(setup, method).best) {
    seconds.push_back(one.seconds());
  }
  return top_ten(seconds);
}

inline double
price_with(const AmpSetup& setup, cost::Strategy strategy, std::vector<int> boundaries) {
  strategy.boundaries = std::move(boundaries);
  return cost::price(setup.model, setup.cluster, strategy).seconds;
}

/// Returns the best strategy of four stages and four replicas, which is what figure 3 has, and
/// whose layers table 5 replaces.
inline planner::Candidate amp_best_of_four_by_four(const AmpSetup& setup) {
  planner::SearchOptions options;
  options.tensor_degree = 1;
  options.keep = 1000;
  for (const planner::Candidate& one : planner::search(setup.model, setup.cluster, options).best) {
    if (one.strategy.pp == 4 && one.strategy.dp == 4) {
      return one;
    }
  }
  throw Error("no strategy of 4 stages and 4 replicas fits");
}

/// Table 5: seconds of one strategy with the layers of the two baselines and with the best ones.
struct Assignments {
  double by_parameters = 0;
  double even_layers = 0;
  double best = 0;
};

inline Assignments amp_assignments(const AmpSetup& setup) {
  const planner::Candidate best = amp_best_of_four_by_four(setup);
  return {
      price_with(setup, best.strategy, even_parameters(setup.model, 4)),
      price_with(setup, best.strategy, even_layers(setup.model, 4)),
      best.seconds()};
}

/// Figure 2: every finished run of the homogeneous setup, estimated and executed by the simulator.
/// Returns both series, in seconds over measured seconds.
inline std::vector<Series> amp_figure_two(const std::string& folder) {
  const AmpSetup setup = amp_setup(folder, "gpt2", "homogeneous");
  const planner::PricedTable table = amp_runs(folder);
  Series priced = {"estimate", {}, {}, false};
  Series simulated = {"simulation", {}, {}, false};
  for (const planner::PricedRow& row : table.rows) {
    const double measured = std::stod(table.cell(row, "measured_s"));
    if (std::isinf(measured)) {
      continue;
    }
    const cost::Strategy strategy = strategy_of(table, row, setup.model);
    simulator::SimulationOptions options;
    options.keep_events = false;
    priced.x.push_back(measured);
    priced.y.push_back(row.cost.seconds);
    simulated.x.push_back(measured);
    simulated.y.push_back(
        simulator::simulate(setup.model, setup.cluster, strategy, options).iteration_seconds);
  }
  return {priced, simulated};
}

/// Figure 3: by how many times the best layers beat even layers and even parameters, over the
/// seconds of a narrow layer to those of a wide one (equation 9).
inline std::vector<Series> amp_figure_three(const AmpSetup& setup) {
  std::vector<Series> series = {
      {"over even layers", {}, {}, true}, {"over even parameters", {}, {}, true}};
  for (const double share : {0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0}) {
    const Assignments seconds =
        amp_assignments({with_narrow_layers(setup.model, share), setup.cluster});
    series[0].x.push_back(share);
    series[1].x.push_back(share);
    series[0].y.push_back(seconds.even_layers / seconds.best);
    series[1].y.push_back(seconds.by_parameters / seconds.best);
  }
  return series;
}

} // namespace tessera::bench
