// Tables 2 and 3 and figure 7 of Xu et al. 2021 by simulation, and isoefficiency.
// usage: optimus_paper FOLDER
// FOLDER is bench/optimus/published.
#include "bench/optimus/paper.h"

#include <cstdio>
#include <exception>

namespace {

using namespace tessera;
using bench::OptimusRun;
using bench::SimulatedRun;

void show_tables(
    const std::vector<OptimusRun>& runs,
    const std::vector<SimulatedRun>& found,
    const cost::Cluster& cluster) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const OptimusRun& run = runs[i];
    const double forward = found[i].forward / run.batch;
    const double backward = found[i].backward / run.batch;
    const SimulatedRun alone =
        bench::simulate_stem(bench::stem(run.hidden), cluster, false, 1, run.batch);
    const double speed_up =
        (alone.forward + alone.backward) / (found[i].forward + found[i].backward);
    // A problem that grows is compared with Gustafson's law, a fixed one with Amdahl's.
    const bool grows = run.table == 2;
    const double serial = grows ? bench::gustafson_share(speed_up, run.devices)
                                : bench::amdahl_share(speed_up, run.devices);
    std::printf(
        "table %d %-8s %2d devices: forward %.4f (%.4f) backward %.4f (%.4f) sequences/s %.3f "
        "(%.3f) "
        "%+5.1f %%  efficiency %.3f, serial share by %s %.3f\n",
        run.table,
        run.mesh ? "Optimus" : "Megatron",
        run.devices,
        forward,
        run.forward_seconds,
        backward,
        run.backward_seconds,
        1 / (forward + backward),
        run.throughput,
        100 * ((forward + backward) * run.throughput - 1),
        speed_up / run.devices,
        grows ? "Gustafson" : "Amdahl",
        serial);
  }
}

void show_isoefficiency(const cost::Cluster& node) {
  std::printf("isoefficiency at 0.3: hidden size that it needs\n");
  double before[2] = {0, 0};
  for (const int devices : {16, 64, 256, 1024, 4096}) {
    const cost::Cluster cluster = bench::enlarged(node, devices / 4);
    std::printf("  %4d devices:", devices);
    for (const bool mesh : {false, true}) {
      const double hidden = bench::isoefficient_hidden(cluster, mesh, devices, 0.3, 1.0 / 64);
      std::printf(" %s %.0f", mesh ? "Optimus" : "Megatron", hidden);
      double& last = before[mesh ? 1 : 0];
      if (last > 0) {
        std::printf(" (W ~ p^%.2f)", 3 * std::log(hidden / last) / std::log(4.0));
      }
      last = hidden;
    }
    std::printf("\n");
  }
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: optimus_paper FOLDER\n");
    return 2;
  }
  try {
    const std::string folder = argv[1];
    const auto cluster = planner::load_cluster(folder + "/cluster_frontera_rtx.json");
    show_tables(bench::optimus_runs(folder), bench::simulate_runs(folder), cluster);
    show_isoefficiency(cluster);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "optimus_paper: %s\n", error.what());
    return 1;
  }
  return 0;
}
