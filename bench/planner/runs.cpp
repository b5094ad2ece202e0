// Prices published runs and says how far the estimates are from what was measured.
// usage: planner_runs FOLDER [--rows | --sensitivity]
// FOLDER has runs_*.csv, model_*.json and cluster_*.json (bench/planner/published). With --rows:
// every run; with --sensitivity: what the figures are when a constant changes by a quarter.
#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "tessera/cost/data_sheets.h"

#include "bench/planner/accuracy_limits.h"

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
void show_sensitivity(const std::string& folder) {
  using tessera::cost::Cluster;
  using tessera::cost::Constants;
  const std::vector<std::pair<const char*, double Constants::*>> constants = {
      {"operators of a layer", &Constants::transformer_operators},
      {"link efficiency", &Constants::link_efficiency},
      {"link latency", &Constants::link_latency_seconds},
      {"optimizer traffic", &Constants::optimizer_traffic_bytes},
      {"memory efficiency", &Constants::memory_efficiency},
      {"gradient on the wire", &Constants::gradient_wire_bytes},
      {"gradient bucket", &Constants::gradient_bucket_bytes},
      {"context", &Constants::context_bytes},
      {"logits", &Constants::logit_bytes},
      {"attention share", &Constants::attention_share},
      {"traffic of the loss", &Constants::loss_traffic_bytes},
      {"traffic of sums", &Constants::accumulation_traffic_bytes},
      {"gradient sum", &Constants::gradient_sum_bytes},
      {"usable memory", &Constants::packed_memory_share},
      {"latency inside a node", &Constants::device_latency_seconds}};
  const auto vary = [](const std::string& name, const auto& runs_of) {
    for (const double factor : {0.75, 1.25}) {
      const auto broken =
          tessera::bench::broken_limits(runs_of(factor), tessera::bench::accuracy_limits());
      std::printf(
          "%-24s x %.2f: %2zu limits break%s%s\n",
          name.c_str(),
          factor,
          broken.size(),
          broken.empty() ? "" : ", the first: ",
          broken.empty() ? "" : broken.front().c_str());
      std::fflush(stdout);
    }
  };
  for (const auto& [name, field] : constants) {
    vary(name, [&, member = field](double factor) {
      Constants changed;
      changed.*member *= factor;
      return tessera::bench::published_runs(folder, changed);
    });
  }
  // What files of clusters and data sheets say.
  const std::vector<std::pair<const char*, void (*)(Cluster&, double)>> properties = {
      {"rate of large products",
       [](Cluster& cluster, double factor) {
         for (auto& kind : cluster.kinds) {
           kind.product_flops_per_s =
               factor * tessera::cost::product_flops(kind, tessera::cost::Precision::kHalf);
         }
       }},
      {"launch",
       [](Cluster& cluster, double factor) { cluster.kinds[0].launch_seconds *= factor; }},
      {"network latency",
       [](Cluster& cluster, double factor) {
         for (auto& node : cluster.nodes) {
           node.network_latency_seconds *= factor;
         }
       }},
      {"network",
       [](Cluster& cluster, double factor) {
         for (auto& node : cluster.nodes) {
           node.inter_bytes_per_s *= factor;
         }
       }},
      {"busy start", [](Cluster& cluster, double factor) { cluster.busy_start_seconds *= factor; }},
      {"stalling share", [](Cluster& cluster, double factor) { cluster.stalling_share *= factor; }},
      {"stall", [](Cluster& cluster, double factor) { cluster.stall_seconds *= factor; }}};
  for (const auto& [name, change] : properties) {
    vary(name, [&, apply = change](double factor) {
      return tessera::bench::published_runs(
          folder, {}, [&](Cluster& cluster) { apply(cluster, factor); });
    });
  }
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: planner_runs FOLDER [--rows | --sensitivity]\n");
    return 2;
  }
  const std::string option = argc == 3 ? argv[2] : "";
  try {
    if (option == "--sensitivity") {
      show_sensitivity(argv[1]);
      return 0;
    }
    const auto all = tessera::bench::published_runs(argv[1], {});
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
