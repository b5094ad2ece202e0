// Simulates the training runs of Karakus et al. 2021, section 7.
// usage: planner_smp FOLDER
// FOLDER has the models and the cluster (bench/planner/smp).
#include <cstdio>
#include <exception>

#include "bench/planner/smp_runs.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: planner_smp FOLDER\n");
    return 2;
  }
  try {
    for (const auto& run : tessera::bench::smp_runs()) {
      const auto result = tessera::bench::simulate_smp(argv[1], run);
      const auto& cost = result.cost;
      std::printf(
          "%-12s %4d devices: measured %6.1f sequences/s, simulated %6.1f (%+.0f %%), priced "
          "%6.1f%s\n"
          "  of %.2f s: compute %.2f tensor %.2f bubble %.2f transfer %.2f gradient %.2f "
          "optimizer %.2f; %.1f GiB needed\n",
          run.model,
          8 * run.nodes,
          run.measured,
          result.simulated,
          100 * (result.simulated / run.measured - 1),
          result.priced,
          result.fits ? "" : ", does not fit",
          cost.seconds,
          cost.compute_seconds,
          cost.tensor_seconds,
          cost.bubble_seconds,
          cost.transfer_seconds,
          cost.gradient_seconds,
          cost.optimizer_seconds,
          cost.needed_bytes() / (1 << 30));
      if (run.offloads) {
        std::printf(
            "  missing: %.2f s for each microbatch of a stage; %.2f GB of checkpoints out and "
            "back; if none of that ran beside computation %.1f sequences/s (%+.0f %%)\n",
            result.missing_seconds,
            result.offloaded_bytes * 1e-9,
            result.in_turn,
            100 * (result.in_turn / run.measured - 1));
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "planner_smp: %s\n", error.what());
    return 1;
  }
  return 0;
}
