#pragma once

#include <numeric>
#include <string>
#include <vector>

#include "tessera/cost/strategy_cost.h"

namespace tessera::cost {

/// Two kinds of device: "fast" needs half the time of "slow". Nodes of two.
inline Cluster small_cluster(int fast_nodes, int slow_nodes) {
  Cluster cluster;
  cluster.name = "small";
  cluster.kinds = {
      {.name = "fast", .memory_bytes = 16e9, .memory_bytes_per_s = 1e12},
      {.name = "slow", .memory_bytes = 8e9, .memory_bytes_per_s = 5e11}};
  for (int n = 0; n < fast_nodes + slow_nodes; ++n) {
    cluster.nodes.push_back(
        {.kind = n < fast_nodes ? 0 : 1,
         .count = 2,
         .intra_bytes_per_s = 10e9,
         .inter_bytes_per_s = 1e9});
  }
  return cluster;
}

/// `count` layers of one millisecond on "fast"; layer i costs i times as much
/// more with `growth`.
inline DescribedModel small_model(int count, double growth = 0, const std::string& kind = "other") {
  DescribedModel model;
  model.name = "small";
  model.global_batch_size = 16;
  model.activation_checkpointing = true;
  for (int i = 0; i < count; ++i) {
    const double seconds = 1e-3 * (1 + growth * i);
    model.layers.push_back(
        {.name = "layer." + std::to_string(i),
         .kind = kind,
         .parameters = 1'000'000,
         .shares_parameters_with = {},
         .output_elements_per_sample = 1000});
    model.measured().layers.push_back(
        {.forward_seconds_per_sample = {
             {"fast", {{1, seconds}, {2, seconds}}},
             {"slow", {{1, 2 * seconds}, {2, 2 * seconds}}}}});
  }
  return model;
}

inline std::vector<int> even_cuts(int layers, int stages) {
  std::vector<int> cuts;
  for (int k = 0; k <= stages; ++k) {
    cuts.push_back(layers * k / stages);
  }
  return cuts;
}

inline Strategy
small_strategy(int pp, int dp, int tp, int mbs, int layers, const std::string& letters = "PDT") {
  Strategy strategy;
  strategy.pp = pp;
  strategy.dp = dp;
  strategy.tp = tp;
  strategy.microbatch_size = mbs;
  strategy.boundaries = even_cuts(layers, pp);
  std::vector<int> order(static_cast<std::size_t>(strategy.devices()));
  std::iota(order.begin(), order.end(), 0);
  strategy.placement = letters;
  strategy.device_of_rank = lay_out(strategy, letters, order);
  return strategy;
}

/// Constants that leave equations (3) to (5) alone.
inline Constants bare_constants() {
  Constants constants;
  constants.transformer_operators = 1;
  constants.link_efficiency = 1;
  constants.link_latency_seconds = 0;
  constants.optimizer_traffic_bytes = 0;
  return constants;
}

} // namespace tessera::cost
