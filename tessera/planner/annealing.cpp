#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "tessera/planner/methods.h"
#include "tessera/planner/pricer.h"
#include "tessera/planner/random_index.h"

namespace tessera::planner {

namespace {

// A strategy with its ranks on devices, and the order of the nodes behind that; empty: none.
struct Placed {
  cost::Strategy strategy;
  std::vector<int> node_order;
};

// Swaps two tensor-parallel groups, so that each stays within its nodes, or two single devices.
Placed swapped_devices(const Candidate& current, std::mt19937_64& random) {
  Placed next{current.strategy, {}};
  std::vector<int>& devices = next.strategy.device_of_rank;
  const std::size_t width =
      index_below(random, 4) == 0 ? 1 : static_cast<std::size_t>(next.strategy.tp);
  const std::size_t groups = devices.size() / width;
  const std::size_t a = index_below(random, groups) * width;
  const std::size_t b = index_below(random, groups) * width;
  for (std::size_t i = 0; i < width; ++i) {
    std::swap(devices[a + i], devices[b + i]);
  }
  next.strategy.placement = "";
  return next;
}

// Swaps two nodes in the order in which hosts are started, and now and then the letters of the
// placement. The runtime can be given no other placement.
Placed
swapped_nodes(const Candidate& current, const cost::Cluster& cluster, std::mt19937_64& random) {
  Placed next{current.strategy, current.node_order};
  const std::size_t nodes = next.node_order.size();
  const std::size_t a = index_below(random, nodes);
  const std::size_t b = index_below(random, nodes);
  std::swap(next.node_order[a], next.node_order[b]);
  if (next.strategy.pp > 1 && next.strategy.dp > 1 && index_below(random, 4) == 0) {
    next.strategy.placement = next.strategy.placement == "PDT" ? "DPT" : "PDT";
  }
  next.strategy.device_of_rank = cost::lay_out(
      next.strategy, next.strategy.placement, devices_in_order(cluster, next.node_order));
  return next;
}

} // namespace

std::vector<Candidate> annealed(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options,
    const std::vector<Candidate>& start) {
  if (options.runnable_only && options.keep_node_order) {
    return {}; // the search has tried all letters
  }
  const Pricer pricer(model, cluster, options);
  std::mt19937_64 random(options.seed);
  std::vector<Candidate> result;
  const std::size_t chains = std::min<std::size_t>(start.size(), 3);
  for (std::size_t chain = 0; chain < chains; ++chain) {
    Candidate current = start[chain];
    Candidate best = current;
    const cost::Strategy& first = start[chain].strategy;
    const cost::LayerTable table(model, cluster, first, options.constants);
    // The temperature begins at a tenth of the estimate.
    double temperature = current.cost.seconds / 10;
    for (int step = 0; step < options.annealing_steps; ++step) {
      if (options.stop != nullptr && options.stop->load()) {
        break;
      }
      Placed next = options.runnable_only ? swapped_nodes(current, cluster, random)
                                          : swapped_devices(current, random);
      temperature *= 1 - 4.0 / std::max(options.annealing_steps, 5);
      auto candidate = pricer.assigned(std::move(next.strategy), table);
      if (!candidate || !candidate->cost.fits() ||
          (options.runnable_only && ties_apart(candidate->strategy, model))) {
        continue;
      }
      candidate->node_order = std::move(next.node_order);
      const double worse = candidate->cost.seconds - current.cost.seconds;
      const double draw = static_cast<double>(random() >> 11) * 0x1.0p-53;
      if (worse <= 0 || draw < std::exp(-worse / temperature)) {
        current = std::move(*candidate);
        if (current.cost.seconds < best.cost.seconds) {
          best = current;
        }
      }
    }
    if (best.cost.seconds < start[chain].cost.seconds) {
      result.push_back(std::move(best));
    }
  }
  return result;
}

} // namespace tessera::planner
