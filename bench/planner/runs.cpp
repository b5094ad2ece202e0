// Prices published runs and says how far the estimates are from what was measured.
// usage: planner_runs FOLDER [--rows | --limits]
//        planner_runs FOLDER --sensitivity SMP-FOLDER MEGATRON-FOLDER [AMP-FOLDER]
// FOLDER has runs_*.csv, model_*.json and cluster_*.json (bench/planner/published,
// bench/planner/one_device). With --rows: every run; with --limits: what
// bench/planner/accuracy_limits.h may say at most; with --sensitivity: which of these limits break
// when a constant changes by a quarter.
#include <cmath>
#include <cstdio>
#include <exception>
#include <set>
#include <string>
#include <vector>

#include "bench/planner/frozen_constants.h"

namespace {

using tessera::bench::PublishedRuns;
using tessera::planner::Judgement;

void show(const std::string& name, const Judgement& verdict) {
  std::printf(
      "%-24s %4d of %4d  rho %.3f  time %5.1f %% (9 of 10: %5.1f %%, ratio %.2f)  memory %5.1f %%  "
      "right %5.1f %% (refused %d, accepted %d)  regret %5.1f %%\n",
      name.c_str(),
      verdict.finished,
      verdict.runs,
      verdict.spearman,
      100 * verdict.median_error,
      100 * verdict.worst_decile_error,
      verdict.median_ratio,
      100 * verdict.memory_error,
      100 * verdict.right(),
      verdict.refused,
      verdict.accepted,
      100 * verdict.regret);
}

void show_rows(const PublishedRuns& runs) {
  for (const auto& row : runs.table.rows) {
    std::string line = runs.name;
    for (const auto& cell : row.cells) {
      line += " " + cell;
    }
    double most = 0;
    int fullest = 0;
    for (std::size_t k = 0; k < row.cost.stages.size(); ++k) {
      if (row.cost.stages[k].memory.total() > most) {
        most = row.cost.stages[k].memory.total();
        fullest = static_cast<int>(k);
      }
    }
    const auto& cost = row.cost;
    std::printf(
        "%s | %.4g s %.2f GiB of stage %d %s | compute %.3f tensor %.3f waiting %.3f bubble %.3f "
        "transfer %.3f gradient %.3f optimizer %.3f stall %.3f\n",
        line.c_str(),
        cost.seconds,
        most / (1 << 30),
        fullest,
        std::isinf(row.seconds()) ? "refused" : "runs",
        cost.compute_seconds,
        cost.tensor_seconds,
        cost.waiting_seconds,
        cost.bubble_seconds,
        cost.transfer_seconds,
        cost.gradient_seconds,
        cost.optimizer_seconds,
        cost.stall_seconds);
  }
}

// Which limits break when a constant changes by a quarter.
void show_sensitivity(const tessera::bench::AccuracyRuns& runs) {
  const tessera::bench::FrozenConstant none = {"as they are", [](auto&, auto&, double) {}};
  for (const std::string& limit : tessera::bench::broken_by(none, 1, runs)) {
    std::printf("as they are: %s\n", limit.c_str());
  }
  for (const auto& constant : tessera::bench::frozen_constants()) {
    for (const double factor : {constant.less, constant.more}) {
      const auto broken = tessera::bench::broken_by(constant, factor, runs);
      std::printf(
          "%-32s x %.2f: %2zu limits break%s%s\n",
          constant.name,
          factor,
          broken.size(),
          broken.empty() ? "" : ", the first: ",
          broken.empty() ? "" : broken.front().c_str());
      std::fflush(stdout);
    }
  }
}

// The limits that what was reached holds, as bench/planner/accuracy_limits.h has them.
void show_limits(const std::vector<PublishedRuns>& all) {
  const auto down = [](double value) { return std::floor(1000 * value) / 1000; };
  const auto up = [](double value) { return std::ceil(1000 * value) / 1000; };
  for (const PublishedRuns& runs : all) {
    std::set<int> counts = {0};
    if (runs.name.starts_with("llama") && runs.node_counts().size() > 1) {
      counts = runs.node_counts();
    }
    for (const int nodes : counts) {
      const Judgement verdict = tessera::planner::judge(
          runs.table, [&](const auto& row) { return nodes == 0 || runs.nodes(row) == nodes; });
      std::printf(
          "      {\"%s\", %d, %.3f, %.3f, %.3f, %.3f, %.3f, %.3f, %.3f},\n",
          runs.name.c_str(),
          nodes,
          down(verdict.spearman),
          up(verdict.median_error),
          down(verdict.median_ratio),
          up(verdict.median_ratio),
          up(verdict.memory_error),
          down(verdict.right()),
          up(verdict.regret));
    }
  }
}

} // namespace

int main(int argc, char** argv) {
  const std::string option = argc > 2 ? argv[2] : "";
  const bool varies = option == "--sensitivity";
  const bool known = option.empty() || option == "--rows" || option == "--limits" || varies;
  if (argc < 2 || argc > 6 || !known || (varies ? argc < 5 : argc > 3)) {
    std::fprintf(
        stderr,
        "usage: planner_runs FOLDER [--rows | --limits | --sensitivity SMP-FOLDER MEGATRON-FOLDER "
        "[AMP-FOLDER]]\n");
    return 2;
  }
  try {
    if (varies) {
      show_sensitivity(
          {.published = argv[1],
           .smp = argv[3],
           .megatron = argv[4],
           .amp = argc > 5 ? argv[5] : ""});
      return 0;
    }
    const auto all = tessera::bench::published_runs(argv[1], {});
    if (option == "--limits") {
      show_limits(all);
      return 0;
    }
    for (const PublishedRuns& runs : all) {
      if (option == "--rows") {
        show_rows(runs);
        continue;
      }
      for (const int nodes : runs.node_counts()) {
        show(
            runs.name + " " + std::to_string(nodes),
            tessera::planner::judge(runs.table, runs.on_nodes(nodes)));
      }
      show(runs.name + " all", tessera::planner::judge(runs.table, [](const auto&) {
             return true;
           }));
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "planner_runs: %s\n", error.what());
    return 1;
  }
  return 0;
}
