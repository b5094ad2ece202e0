#pragma once

// The runs of Xu et al. 2021, tables 2 and 3, simulated. Header only: `optimus_paper` and the test
// of accuracy.

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/base/files.h"
#include "tessera/planner/description.h"
#include "tessera/simulator/simulate.h"

namespace tessera::bench {

/// One stem of layers on so many devices, one tensor-parallel group.
struct OptimusRun {
  int table = 2;
  bool mesh = false; // Optimus; otherwise Megatron
  int devices = 1;
  int batch = 1;
  int hidden = 0;
  double forward_seconds = 0; // of one sequence, measured
  double backward_seconds = 0;
  double throughput = 0; // sequences a second, as listed; in two rows the seconds say otherwise
};

/// The seconds of a whole batch.
struct SimulatedRun {
  double forward = 0;
  double backward = 0;
};

inline std::vector<OptimusRun> optimus_runs(const std::string& folder) {
  std::istringstream in(read_file(folder + "/tables.csv"));
  std::vector<OptimusRun> runs;
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    std::replace(line.begin(), line.end(), ',', ' ');
    std::istringstream cells(line);
    OptimusRun run;
    std::string scheme;
    cells >> run.table >> scheme >> run.devices >> run.batch >> run.hidden >> run.forward_seconds >>
        run.backward_seconds >> run.throughput;
    run.mesh = scheme == "optimus";
    runs.push_back(run);
  }
  return runs;
}

/// Simulates a forward and a backward of one batch without the optimizer, on the first devices of
/// the cluster.
inline SimulatedRun simulate_stem(
    cost::DescribedModel model,
    const cost::Cluster& cluster,
    bool mesh,
    int devices,
    int batch,
    const simulator::SimulationOptions& options = {}) {
  model.global_batch_size = batch;
  cost::Cluster part = cluster;
  if (devices < cluster.nodes.front().count) {
    part = cluster.first_nodes(1);
    part.nodes[0].count = devices;
  } else {
    part = cluster.first_nodes(devices / cluster.nodes.front().count);
  }
  cost::Strategy strategy;
  strategy.tp = devices;
  strategy.microbatch_size = batch;
  strategy.boundaries = {0, static_cast<int>(model.layers.size())};
  strategy.distribution = mesh ? cost::Distribution::kMesh : cost::Distribution::kSpeed;
  strategy.device_of_rank.resize(static_cast<std::size_t>(devices));
  std::iota(strategy.device_of_rank.begin(), strategy.device_of_rank.end(), 0);
  SimulatedRun result;
  for (const auto& event : simulator::simulate(model, part, strategy, options).timeline.events) {
    if (event.rank == 0 && event.category == "forward") {
      result.forward += (event.end_us - event.start_us) * 1e-6;
    } else if (event.rank == 0 && event.category == "backward") {
      result.backward += (event.end_us - event.start_us) * 1e-6;
    }
  }
  return result;
}

/// A stem of 24 layers of any width, for which there is no file.
inline cost::DescribedModel
stem(std::int64_t hidden, int layers = 24, std::int64_t sequence = 512) {
  cost::DescribedModel model;
  model.name = "stem";
  model.precision = cost::Precision::kFull;
  model.activation_checkpointing = true;
  for (int i = 0; i < layers; ++i) {
    model.layers.push_back(
        {.name = "layer." + std::to_string(i),
         .kind = "transformer_layer",
         .parameters = 12 * hidden * hidden,
         .shares_parameters_with = {},
         .output_elements_per_sample = sequence * hidden});
  }
  model.source = cost::SizedModel{
      .sequence_length = sequence, .num_attention_heads = hidden, .vocabulary_size = 1};
  return model;
}

/// Prices the runs of a folder, in their order.
inline std::vector<SimulatedRun> simulate_runs(
    const std::string& folder,
    const simulator::SimulationOptions& options = {}) {
  const cost::Cluster cluster = planner::load_cluster(folder + "/cluster_frontera_rtx.json");
  std::vector<SimulatedRun> results;
  for (const OptimusRun& run : optimus_runs(folder)) {
    const std::string file = folder + "/model_h" + std::to_string(run.hidden) + ".json";
    results.push_back(simulate_stem(
        planner::load_model(file), cluster, run.mesh, run.devices, run.batch, options));
  }
  return results;
}

/// A speed-up over one device, as Amdahl's law and Gustafson's law have it, with the share of the
/// time of one device that is serial. Source: Xu et al. 2021, section 5.
inline double amdahl(double serial, int devices) {
  return 1 / (serial + (1 - serial) / devices);
}
inline double gustafson(double serial, int devices) {
  return serial + (1 - serial) * devices;
}

/// Returns the serial share with which a law gives a measured speed-up on so many devices.
inline double amdahl_share(double speed_up, int devices) {
  return (devices / speed_up - 1) / (devices - 1);
}
inline double gustafson_share(double speed_up, int devices) {
  return (devices - speed_up) / (devices - 1);
}

/// A cluster of so many nodes like the first one.
inline cost::Cluster enlarged(cost::Cluster cluster, int nodes) {
  cluster.nodes.resize(static_cast<std::size_t>(nodes), cluster.nodes.front());
  return cluster;
}

/// Returns the hidden size at which a scheme on `devices` devices has `efficiency`: batch and heads
/// grow with the hidden size (section 3.1.2). Efficiency is the time of one device over `devices`
/// times that of all.
inline double isoefficient_hidden(
    const cost::Cluster& cluster,
    bool mesh,
    int devices,
    double efficiency,
    double samples_per_hidden) {
  const auto reached = [&](std::int64_t hidden) {
    const int batch = std::max(1, static_cast<int>(std::lround(samples_per_hidden * hidden)));
    const auto model = stem(hidden, 1);
    const SimulatedRun alone = simulate_stem(model, cluster, false, 1, batch);
    const SimulatedRun all = simulate_stem(model, cluster, mesh, devices, batch);
    return (alone.forward + alone.backward) / (devices * (all.forward + all.backward));
  };
  std::int64_t low = 64;
  std::int64_t high = std::int64_t{1} << 24;
  while (high - low > std::max<std::int64_t>(16, low / 500)) {
    const std::int64_t middle = (low + high) / 2;
    (reached(middle) < efficiency ? low : high) = middle;
  }
  return static_cast<double>(low + high) / 2;
}

} // namespace tessera::bench
