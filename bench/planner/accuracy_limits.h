#pragma once

// How far estimates of published runs may be from what was measured: what was reached, rounded to
// three places to the safe side (`planner_runs FOLDER --limits` prints it). A constant that changes
// by a quarter breaks one of them (bench/planner/frozen_constants.h).

#include <string>
#include <vector>

#include "bench/planner/published_runs.h"

namespace tessera::bench {

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
      {"llama_1b", 1, 0.918, 0.054, 1.037, 1.038, 0.044, 0.936, 0.000},
      {"llama_1b", 2, 0.943, 0.033, 1.021, 1.022, 0.054, 0.907, 0.000},
      {"llama_1b", 4, 0.972, 0.046, 0.991, 0.992, 0.051, 0.872, 0.000},
      {"llama_1b", 8, 0.911, 0.071, 0.979, 0.980, 0.072, 0.868, 0.015},
      {"llama_1b", 16, 0.933, 0.075, 0.985, 0.986, 0.084, 0.955, 0.000},
      {"llama_1b", 32, 0.838, 0.076, 0.944, 0.945, 0.093, 1.000, 0.000},
      {"llama_1b", 64, 0.960, 0.118, 1.091, 1.092, 0.126, 0.974, 1.691},
      {"llama_8b", 1, 0.516, 0.052, 0.949, 0.950, 0.047, 0.983, 0.051},
      {"llama_8b", 2, 0.666, 0.054, 0.990, 0.991, 0.057, 0.991, 1.719},
      {"llama_8b", 4, 0.704, 0.118, 0.934, 0.935, 0.079, 0.950, 0.060},
      {"llama_8b", 8, 0.781, 0.113, 0.920, 0.921, 0.076, 0.937, 0.003},
      {"llama_8b", 16, 0.872, 0.112, 0.935, 0.936, 0.069, 0.892, 0.109},
      {"llama_8b", 32, 0.711, 0.264, 0.781, 0.782, 0.071, 0.991, 12.359},
      {"llama_8b", 64, 0.969, 0.067, 1.016, 1.017, 0.099, 0.956, 2.957},
      {"mpt_125m_a100_40gb", 0, 0.900, 0.057, 1.044, 1.045, 0.000, 1.000, 0.054},
      {"mpt_125m_a100_80gb", 0, 1.000, 0.025, 1.010, 1.011, 0.000, 1.000, 0.000},
      {"mpt_13b_a100_40gb", 0, 0.983, 0.095, 0.905, 0.906, 0.000, 1.000, 0.000},
      {"mpt_13b_a100_80gb", 0, 1.000, 0.047, 1.044, 1.045, 0.000, 1.000, 0.000},
      {"mpt_13b_h100_80gb", 0, 0.945, 0.086, 1.016, 1.017, 0.000, 1.000, 0.003},
      {"mpt_1b_a100_40gb", 0, 0.990, 0.038, 0.962, 0.963, 0.000, 1.000, 0.000},
      {"mpt_1b_a100_80gb", 0, 1.000, 0.029, 0.975, 0.976, 0.000, 1.000, 0.000},
      {"mpt_1b_h100_80gb", 0, 0.964, 0.036, 1.019, 1.020, 0.000, 1.000, 0.108},
      {"mpt_30b_a100_40gb", 0, 1.000, 0.021, 1.020, 1.021, 0.000, 1.000, 0.000},
      {"mpt_30b_a100_80gb", 0, 1.000, 0.008, 0.992, 0.993, 0.000, 1.000, 0.000},
      {"mpt_30b_h100_80gb", 0, 0.933, 0.042, 0.958, 0.959, 0.000, 1.000, 0.040},
      {"mpt_350m_a100_40gb", 0, 0.909, 0.025, 1.000, 1.001, 0.000, 1.000, 0.067},
      {"mpt_350m_a100_80gb", 0, 1.000, 0.025, 0.982, 0.983, 0.000, 1.000, 0.000},
      {"mpt_3b_a100_40gb", 0, 0.954, 0.057, 0.943, 0.944, 0.000, 1.000, 0.000},
      {"mpt_3b_a100_80gb", 0, 1.000, 0.023, 0.978, 0.979, 0.000, 1.000, 0.000},
      {"mpt_3b_h100_80gb", 0, 0.972, 0.053, 0.999, 1.000, 0.000, 1.000, 0.082},
      {"mpt_70b_a100_40gb", 0, 1.000, 0.275, 0.952, 0.953, 0.000, 1.000, 0.000},
      {"mpt_70b_a100_80gb", 0, 1.000, 0.052, 1.004, 1.005, 0.000, 1.000, 0.000},
      {"mpt_70b_h100_80gb", 0, 0.600, 0.019, 0.996, 0.997, 0.000, 1.000, 0.051},
      {"mpt_760m_a100_40gb", 0, 0.918, 0.040, 0.960, 0.961, 0.000, 1.000, 0.025},
      {"mpt_760m_a100_80gb", 0, 0.904, 0.043, 0.959, 0.960, 0.000, 1.000, 0.102},
      {"mpt_760m_h100_80gb", 0, 0.983, 0.011, 1.004, 1.005, 0.000, 1.000, 0.009},
      {"mpt_7b_a100_40gb", 0, 0.951, 0.011, 1.010, 1.011, 0.000, 1.000, 0.000},
      {"mpt_7b_a100_80gb", 0, 1.000, 0.025, 1.018, 1.019, 0.000, 1.000, 0.000},
      {"mpt_7b_h100_80gb", 0, 0.833, 0.086, 1.045, 1.046, 0.000, 1.000, 0.101},
  };
}

/// Returns the limits of what is in bench/planner/one_device, whose clusters have measured rates.
inline std::vector<AccuracyLimits> one_device_limits() {
  return {
      {"gpt_huge_h100", 0, 1.000, 0.111, 1.110, 1.111, 0.066, 0.875, 0.000},
      {"gpt_huge_h200", 0, 1.000, 0.089, 1.088, 1.089, 0.066, 1.000, 0.000},
      {"gpt_medium_h100", 0, 0.958, 0.087, 1.082, 1.083, 0.051, 1.000, 0.000},
      {"gpt_medium_h200", 0, 0.958, 0.107, 1.106, 1.107, 0.051, 1.000, 0.000},
      {"gpt_wide_h100", 0, 1.000, 0.138, 1.137, 1.138, 0.018, 1.000, 0.000},
      {"gpt_wide_h200", 0, 1.000, 0.108, 1.107, 1.108, 0.019, 1.000, 0.000},
      {"llama_deep_h100", 0, 0.976, 0.146, 0.888, 0.889, 0.043, 1.000, 0.000},
      {"llama_deep_h200", 0, 1.000, 0.137, 0.869, 0.870, 0.043, 1.000, 0.000},
      {"llama_vocabulary_h100", 0, 1.000, 0.028, 0.989, 0.990, 0.055, 0.875, 0.000},
      {"llama_vocabulary_h200", 0, 1.000, 0.042, 0.966, 0.967, 0.055, 1.000, 0.000},
      {"llama_wide_h100", 0, 1.000, 0.020, 1.008, 1.009, 0.037, 1.000, 0.000},
      {"llama_wide_h200", 0, 1.000, 0.047, 0.960, 0.961, 0.037, 1.000, 0.000},
  };
}

} // namespace tessera::bench
