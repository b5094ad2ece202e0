#pragma once

// Full enumeration of small cases, which shares nothing with the search but the prices.

#include <algorithm>
#include <limits>
#include <vector>

#include "tessera/cost/strategy_cost.h"

namespace tessera::planner {

/// All boundaries of `stages` stages over `layers` layers, each at least one layer long.
inline std::vector<std::vector<int>> every_cut(int layers, int stages) {
  std::vector<std::vector<int>> result = {{0}};
  for (int k = 1; k < stages; ++k) {
    std::vector<std::vector<int>> longer;
    for (const std::vector<int>& cuts : result) {
      for (int cut = cuts.back() + 1; cut <= layers - (stages - k); ++cut) {
        longer.push_back(cuts);
        longer.back().push_back(cut);
      }
    }
    result = std::move(longer);
  }
  for (std::vector<int>& cuts : result) {
    cuts.push_back(layers);
  }
  return result;
}

/// All placements that differ in the node of some rank; devices of a node are alike.
inline std::vector<std::vector<int>> every_placement(const cost::Cluster& cluster) {
  std::vector<int> nodes = cluster.node_of_device();
  std::vector<std::vector<int>> placements;
  std::sort(nodes.begin(), nodes.end());
  do {
    std::vector<int> next(cluster.nodes.size(), 0);
    for (std::size_t n = 1; n < next.size(); ++n) {
      next[n] = next[n - 1] + cluster.nodes[n - 1].count;
    }
    placements.emplace_back();
    for (const int node : nodes) {
      placements.back().push_back(next[static_cast<std::size_t>(node)]++);
    }
  } while (std::next_permutation(nodes.begin(), nodes.end()));
  return placements;
}

/// Calls `visit(strategy, cost)` for every strategy with the settings of `base` that fits.
template <typename Visit>
void every_strategy(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const cost::Strategy& base,
    const cost::Constants& constants,
    const Visit& visit) {
  const int devices = cluster.device_count();
  const int layers = static_cast<int>(model.layers.size());
  const int batch = model.global_batch_size;
  const auto placements = every_placement(cluster);
  const std::vector<int> degrees = model.measured_degrees(cluster.kinds.front().name);
  cost::Strategy strategy = base;
  for (strategy.tp = 1; strategy.tp <= devices; ++strategy.tp) {
    if (std::find(degrees.begin(), degrees.end(), strategy.tp) == degrees.end()) {
      continue;
    }
    for (strategy.pp = 1; strategy.pp <= std::min(layers, devices); ++strategy.pp) {
      strategy.dp = devices / strategy.tp / strategy.pp;
      for (int size = 1; strategy.devices() == devices && size <= batch; ++size) {
        if (batch % (strategy.dp * size) != 0) {
          continue;
        }
        strategy.microbatch_size = size;
        const cost::LayerTable table(model, cluster, strategy, constants);
        for (const std::vector<int>& placement : placements) {
          strategy.device_of_rank = placement;
          const cost::PlacementLinks links = cost::place(strategy, cluster, constants);
          for (const std::vector<int>& cuts : every_cut(layers, strategy.pp)) {
            strategy.boundaries = cuts;
            const cost::StrategyCost cost =
                cost::price(model, cluster, strategy, table, links, constants);
            if (cost.fits()) {
              visit(strategy, cost);
            }
          }
        }
      }
    }
  }
}

/// The least seconds of all of them; infinite when none fits.
inline double least_seconds(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const cost::Strategy& base,
    const cost::Constants& constants) {
  double least = std::numeric_limits<double>::infinity();
  every_strategy(model, cluster, base, constants, [&](const auto&, const auto& cost) {
    least = std::min(least, cost.seconds);
  });
  return least;
}

} // namespace tessera::planner
