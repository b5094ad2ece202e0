#pragma once

// The training runs of Karakus et al. 2021, section 7, simulated and priced. Header only:
// `planner_smp` and the test of accuracy.

#include <functional>
#include <numeric>
#include <string>
#include <variant>
#include <vector>

#include "tessera/cost/strategy_cost.h"
#include "tessera/planner/description.h"
#include "tessera/simulator/simulate.h"

namespace tessera::bench {

struct SmpRun {
  const char* model;
  int nodes; // of eight A100
  int pp;
  int dp;
  int tp;
  int microbatch_size;
  bool offloads; // checkpoints to the host's memory
  double measured; // sequences a second
  /// What was reached: simulated to measured sequences a second, between these two.
  double least_ratio;
  double most_ratio;
  /// And GiB that a device needs.
  double least_gib;
  double most_gib;
};

/// Section 7.2, and the rows of this library in table 2. Microbatches are not given for table 2:
/// one of all samples of a replica for the first model, four for the second, whose batch is larger.
inline std::vector<SmpRun> smp_runs() {
  return {
      {"gpt3_175b", 120, 6, 20, 8, 2, true, 26.5, 1.540, 1.543, 35.1, 35.3},
      {"roberta_10b", 16, 1, 32, 4, 32, false, 385, 0.978, 0.980, 27, 27.2},
      {"bert_10b", 16, 1, 32, 4, 64, false, 327, 0.995, 0.997, 32.4, 32.6}};
}

struct SmpResult {
  double simulated = 0; // sequences a second
  double priced = 0;
  bool fits = false;
  cost::StrategyCost cost;
  /// Seconds that the measured run took longer, for each microbatch of a stage.
  double missing_seconds = 0;
  /// Bytes of a stage's inputs of layers, which a rank keeps whole, out to the host and back.
  double offloaded_bytes = 0;
  /// Sequences a second if none of that ran beside the computation.
  double in_turn = 0;
};

inline SmpResult simulate_smp(
    const std::string& folder,
    const SmpRun& run,
    const cost::Constants& constants = {},
    const std::function<void(cost::Cluster&)>& change = [](cost::Cluster&) {}) {
  auto model = planner::load_model(folder + "/model_" + run.model + ".json");
  std::get<cost::SizedModel>(model.source).attention = cost::AttentionKernels::kOperators;
  auto cluster = planner::load_cluster(folder + "/cluster_p4d.json").first_nodes(run.nodes);
  change(cluster);
  cost::Strategy strategy;
  strategy.pp = run.pp;
  strategy.dp = run.dp;
  strategy.tp = run.tp;
  strategy.microbatch_size = run.microbatch_size;
  strategy.distribution = cost::Distribution::kSpeed;
  strategy.shard_optimizer_state = true;
  strategy.overlap_gradients = true;
  strategy.offload_activations = run.offloads;
  const int layers = static_cast<int>(model.layers.size());
  for (int k = 0; k <= run.pp; ++k) {
    strategy.boundaries.push_back(layers * k / run.pp);
  }
  std::vector<int> order(static_cast<std::size_t>(strategy.devices()));
  std::iota(order.begin(), order.end(), 0);
  strategy.device_of_rank = cost::lay_out(strategy, strategy.placement, order);
  simulator::SimulationOptions options;
  options.keep_events = false;
  options.constants = constants;
  options.constants.gradient_wire_bytes /= 2; // reduced in the type of the parameters
  SmpResult result;
  result.cost = cost::price(model, cluster, strategy, options.constants);
  result.fits = result.cost.fits();
  result.priced = model.global_batch_size / result.cost.seconds;
  result.simulated = model.global_batch_size /
                     simulator::simulate(model, cluster, strategy, options).iteration_seconds;
  const double slots = strategy.microbatches(model.global_batch_size) + run.pp - 1;
  result.missing_seconds =
      (model.global_batch_size / run.measured - model.global_batch_size / result.simulated) / slots;
  for (int i = strategy.boundaries[0]; i < strategy.boundaries[1]; ++i) {
    const cost::Layer& layer = model.layers[static_cast<std::size_t>(i)];
    if (layer.kind == "transformer_layer") {
      result.offloaded_bytes +=
          2 * 2.0 * run.microbatch_size * static_cast<double>(layer.output_elements_per_sample);
    }
  }
  const double rate = cluster.kinds[0].host_bytes_per_s;
  const double offloading = run.offloads ? slots * result.offloaded_bytes / rate : 0;
  result.in_turn =
      model.global_batch_size / (model.global_batch_size / result.simulated + offloading);
  return result;
}

/// Returns every limit that the runs break, in words; empty: none.
inline std::vector<std::string> broken_smp_limits(
    const std::string& folder,
    const cost::Constants& constants = {},
    const std::function<void(cost::Cluster&)>& change = [](cost::Cluster&) {}) {
  std::vector<std::string> broken;
  for (const SmpRun& run : smp_runs()) {
    const SmpResult result = simulate_smp(folder, run, constants, change);
    const double ratio = result.simulated / run.measured;
    if (!(ratio >= run.least_ratio && ratio <= run.most_ratio)) {
      broken.push_back(str(run.model, ": simulated to measured is ", ratio));
    }
    const double in_turn = result.in_turn / run.measured;
    if (run.offloads && !(in_turn >= 1.005 && in_turn <= 1.015)) {
      broken.push_back(str(run.model, ": with nothing hidden it is ", in_turn));
    }
    const double gib = result.cost.needed_bytes() / (1 << 30);
    if (!(gib >= run.least_gib && gib <= run.most_gib)) {
      broken.push_back(str(run.model, ": a device needs ", gib, " GiB"));
    }
  }
  return broken;
}

} // namespace tessera::bench
