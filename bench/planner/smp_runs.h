#pragma once

// The training runs of Karakus et al. 2021, section 7, simulated and priced. Header only:
// `planner_smp` and the test of accuracy.

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
};

/// Section 7.2, and the rows of this library in table 2. Microbatches are not given for table 2:
/// one of all samples of a replica for the first model, four for the second, whose batch is larger.
inline std::vector<SmpRun> smp_runs() {
  return {
      {"gpt3_175b", 120, 6, 20, 8, 2, true, 26.5},
      {"roberta_10b", 16, 1, 32, 4, 32, false, 385},
      {"bert_10b", 16, 1, 32, 4, 64, false, 327}};
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
};

inline SmpResult simulate_smp(const std::string& folder, const SmpRun& run) {
  auto model = planner::load_model(folder + "/model_" + run.model + ".json");
  std::get<cost::SizedModel>(model.source).attention = cost::AttentionKernels::kOperators;
  const auto cluster = planner::load_cluster(folder + "/cluster_p4d.json").first_nodes(run.nodes);
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
  options.constants.gradient_wire_bytes = 2; // reduced in the type of the parameters
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
  return result;
}

} // namespace tessera::bench
