// Prices published runs of Megatron-LM on 8 to 3,072 A100.
// usage: planner_megatron FOLDER
// FOLDER has runs.csv, the models and the cluster (bench/planner/megatron).
#include <cstdio>
#include <exception>

#include "bench/planner/megatron_runs.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: planner_megatron FOLDER\n");
    return 2;
  }
  try {
    for (const auto& run : tessera::bench::megatron_runs(argv[1])) {
      std::printf(
          "%-13s %-5s %4d devices, microbatch %d: measured %7.2f s, priced %7.2f s, ratio %.2f\n",
          run.table.c_str(),
          run.model.c_str(),
          run.devices,
          run.microbatch_size,
          run.measured,
          run.priced,
          run.priced / run.measured);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "planner_megatron: %s\n", error.what());
    return 1;
  }
  return 0;
}
