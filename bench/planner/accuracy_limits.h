#pragma once

// How far estimates of published runs may be from what was measured: what was reached, rounded to
// the safe side. A constant that changes by a quarter should break one of them
// (`planner_runs FOLDER --sensitivity` says which do not).

#include <limits>
#include <string>
#include <vector>

#include "bench/planner/published_runs.h"

namespace tessera::bench {

/// The regret where no run is estimated to fit.
inline constexpr double kNothingPicked = std::numeric_limits<double>::infinity();

/// Limits of the runs of one name on so many nodes; 0 nodes: all its runs.
struct AccuracyLimits {
  const char* runs;
  int nodes;
  double spearman; // at least
  double median_error; // at most, as the others
  double least_ratio; // of the median run, estimate to measured
  double most_ratio;
  double memory_error;
  double right; // at least
  double regret;
};

/// Returns every limit that the runs break, in words; empty: none.
inline std::vector<std::string> broken_limits(
    const std::vector<PublishedRuns>& all,
    const std::vector<AccuracyLimits>& limits) {
  std::vector<std::string> broken;
  for (const AccuracyLimits& limit : limits) {
    for (const PublishedRuns& runs : all) {
      if (runs.name != limit.runs) {
        continue;
      }
      const planner::Judgement verdict = planner::judge(
          runs.table,
          limit.nodes > 0 ? runs.on_nodes(limit.nodes) : [](const auto&) { return true; });
      const auto check = [&](const char* what, double value, bool holds) {
        if (!holds) {
          broken.push_back(str(runs.name, ", ", limit.nodes, " nodes: ", what, " is ", value));
        }
      };
      check("Spearman", verdict.spearman, verdict.spearman >= limit.spearman);
      check("the median error", verdict.median_error, verdict.median_error <= limit.median_error);
      check(
          "the median ratio",
          verdict.median_ratio,
          verdict.median_ratio >= limit.least_ratio && verdict.median_ratio <= limit.most_ratio);
      check(
          "the error of memory", verdict.memory_error, verdict.memory_error <= limit.memory_error);
      check("the share called right", verdict.right(), verdict.right() >= limit.right);
      check("the regret", verdict.regret, verdict.regret <= limit.regret);
    }
  }
  return broken;
}

/// Returns the limits of what is in bench/planner/published.
inline std::vector<AccuracyLimits> accuracy_limits() {
  return {
      // runs, nodes, Spearman, time, ratio from, to, memory, right, regret
      {"llama_1b", 1, 0.91, 0.06, 1.01, 1.07, 0.05, 0.93, 0.01},
      {"llama_1b", 2, 0.93, 0.04, 0.99, 1.05, 0.05, 0.9, 0.01},
      {"llama_1b", 4, 0.96, 0.06, 0.97, 1.03, 0.07, 0.88, 0.01},
      {"llama_1b", 8, 0.9, 0.09, 0.95, 1.01, 0.08, 0.85, 0.02},
      {"llama_1b", 16, 0.92, 0.1, 0.93, 0.99, 0.09, 0.95, 0.01},
      {"llama_1b", 32, 0.83, 0.12, 0.90, 0.96, 0.11, 1, 0.01},
      {"llama_1b", 64, 0.96, 0.19, 1.12, 1.18, 0.22, 0.97, 1.7},
      {"llama_8b", 1, 0.51, 0.06, 0.92, 0.98, 0.06, 0.98, 0.06},
      {"llama_8b", 2, 0.66, 0.06, 0.96, 1.02, 0.06, 0.99, 1.73},
      {"llama_8b", 4, 0.7, 0.13, 0.91, 0.97, 0.09, 0.95, 0.07},
      {"llama_8b", 8, 0.77, 0.11, 0.91, 0.97, 0.09, 0.93, 0.01},
      {"llama_8b", 16, 0.86, 0.13, 0.91, 0.97, 0.09, 0.89, 0.12},
      {"llama_8b", 32, 0.71, 0.37, 0.63, 0.69, 0.1, 0.99, 12.37},
      {"llama_8b", 64, 0.96, 0.14, 1.04, 1.10, 0.17, 0.95, 2.97},
      {"mpt_125m_a100_40gb", 0, 0.934, 0.16, 0.83, 0.89, 9, 1, 0.05},
      {"mpt_125m_a100_80gb", 0, 0.998, 0.14, 0.84, 0.90, 9, 1, 0.01},
      {"mpt_13b_a100_40gb", 0, 0.981, 0.08, 0.93, 0.99, 9, 0.44, 0.01},
      {"mpt_13b_a100_80gb", 0, 0.998, 0.19, 1.14, 1.20, 9, 0.83, 0.01},
      {"mpt_13b_h100_80gb", 0, 0.934, 0.12, 0.89, 0.95, 9, 0.9, 0.01},
      {"mpt_1b_a100_40gb", 0, 0.989, 0.03, 0.95, 1.01, 9, 1, 0.01},
      {"mpt_1b_a100_80gb", 0, 0.998, 0.02, 0.97, 1.03, 9, 1, 0.01},
      {"mpt_1b_h100_80gb", 0, 0.98, 0.16, 0.83, 0.89, 9, 1, 0.01},
      {"mpt_30b_a100_40gb", 0, 0.998, 0.1, 1.05, 1.11, 9, 1, 0.01},
      {"mpt_30b_a100_80gb", 0, 0.998, 0.16, 1.11, 1.17, 9, 0, kNothingPicked},
      {"mpt_30b_h100_80gb", 0, 0.931, 0.04, 0.96, 1.02, 9, 0.55, 0.05},
      {"mpt_350m_a100_40gb", 0, 0.907, 0.06, 0.92, 0.98, 9, 1, 0.08},
      {"mpt_350m_a100_80gb", 0, 0.998, 0.06, 0.93, 0.99, 9, 1, 0.01},
      {"mpt_3b_a100_40gb", 0, 0.953, 0.04, 0.95, 1.01, 9, 1, 0.01},
      {"mpt_3b_a100_80gb", 0, 0.998, 0.03, 0.99, 1.05, 9, 1, 0.01},
      {"mpt_3b_h100_80gb", 0, 0.987, 0.16, 0.83, 0.89, 9, 1, 0.04},
      {"mpt_70b_a100_40gb", 0, 0.998, 0.26, 0.98, 1.04, 9, 1, 0.01},
      {"mpt_70b_a100_80gb", 0, 0.998, 0.08, 1.04, 1.10, 9, 1, 0.01},
      {"mpt_70b_h100_80gb", 0, 0.598, 0.05, 1.01, 1.07, 9, 1, 0.06},
      {"mpt_760m_a100_40gb", 0, 0.916, 0.05, 0.93, 0.99, 9, 1, 0.03},
      {"mpt_760m_a100_80gb", 0, 0.903, 0.04, 0.94, 1.00, 9, 1, 0.11},
      {"mpt_760m_h100_80gb", 0, 0.981, 0.23, 0.76, 0.82, 9, 1, 0.02},
      {"mpt_7b_a100_40gb", 0, 0.95, 0.08, 1.04, 1.10, 9, 1, 0.01},
      {"mpt_7b_a100_80gb", 0, 0.998, 0.14, 1.09, 1.15, 9, 1, 0.01},
      {"mpt_7b_h100_80gb", 0, 0.831, 0.11, 0.88, 0.94, 9, 1, 0.11},
  };
}

} // namespace tessera::bench
