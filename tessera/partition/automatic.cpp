#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "tessera/partition/allocation.h"
#include "tessera/partition/holders.h"
#include "tessera/partition/segments.h"
#include "tessera/partition/strategies.h"

namespace tessera::partitioning {

namespace {

using Devices = std::vector<int>;

// Divides the devices of one node among its children: Algorithm 2.
class ChildPartitioner {
 public:
  ChildPartitioner(
      int parent,
      const std::vector<int>& holders,
      std::vector<Devices>& devices_of_node,
      Result& result)
      : parent_(parent), holders_(holders), devices_of_node_(devices_of_node), result_(result) {}

  // Requires that every node holds parameters, and that `nodes` together have at
  // least as many nodes with parameters as there are devices.
  void divide(const Devices& devices, const std::vector<int>& nodes) {
    const std::vector<std::int64_t> costs = units(nodes);
    const int count = static_cast<int>(std::min(devices.size(), nodes.size()));
    const std::vector<int> begins = split_evenly(costs, count);
    std::vector<std::vector<int>> runs;
    std::vector<std::int64_t> run_costs;
    std::vector<int> capacity;
    for (int i = 0; i < count; ++i) {
      runs.emplace_back(nodes.begin() + begins[i], nodes.begin() + begins[i + 1]);
      run_costs.push_back(std::accumulate(
          costs.begin() + begins[i], costs.begin() + begins[i + 1], std::int64_t{0}));
      capacity.push_back(0);
      for (const int node : runs.back()) {
        capacity.back() += holders_[node];
      }
    }
    const Seats seats = allocate_seats(run_costs, capacity, static_cast<int>(devices.size()));
    const std::vector<Devices> sets = hand_out(devices, seats);
    for (int i = 0; i < count; ++i) {
      settle(runs[i], sets[i], devices.front());
    }
  }

 private:
  // Returns the costs in whole units. If no node has a cost, each counts 1, because
  // otherwise every split would be as good as any other.
  std::vector<std::int64_t> units(const std::vector<int>& nodes) const {
    std::vector<std::int64_t> costs;
    costs.reserve(nodes.size());
    for (const int node : nodes) {
      costs.push_back(cost_units(result_.cost[node]));
    }
    if (std::all_of(costs.begin(), costs.end(), [](std::int64_t cost) { return cost == 0; })) {
      costs.assign(nodes.size(), 1);
    }
    return costs;
  }

  void settle(const std::vector<int>& run, const Devices& set, int fall_back) {
    Segment segment;
    segment.parent = parent_;
    segment.nodes = run;
    segment.devices = set;
    for (const int node : run) {
      segment.cost += result_.cost[node];
    }
    result_.segments.push_back(std::move(segment));
    if (set.size() > 1 && run.size() > 1) {
      divide(set, run);
      return;
    }
    for (const int node : run) {
      devices_of_node_[node] = set.empty() ? Devices{fall_back} : set;
    }
  }

  int parent_;
  const std::vector<int>& holders_;
  std::vector<Devices>& devices_of_node_;
  Result& result_;
};

} // namespace

void partition_automatically(const graph::ModelGraph& graph, int partitions, Result& result) {
  const auto& nodes = result.tree.nodes;
  const std::vector<int> holders = count_holders(graph, result.tree);
  std::vector<Devices> devices(nodes.size());
  devices[0].resize(std::clamp(holders[0], 1, partitions));
  std::iota(devices[0].begin(), devices[0].end(), 0);
  result.partition_of_node.assign(nodes.size(), 0);
  // Algorithm 1, breadth first, so that `segments` lists decisions from the top down.
  std::vector<int> queue = {0};
  for (std::size_t next = 0; next < queue.size(); ++next) {
    const int n = queue[next];
    const Devices mine = devices[n];
    result.partition_of_node[n] = mine.front();
    std::vector<int> to_divide;
    int needed = 0;
    for (const int child : nodes[n].children) {
      queue.push_back(child);
      devices[child] = {mine.front()};
      if (holders[child] > 0) {
        to_divide.push_back(child);
        needed += holders[child];
      }
    }
    if (mine.size() > 1) {
      // If the children have fewer nodes with parameters than there are devices, the
      // node itself holds parameters and keeps the first device for them.
      const bool keeps_first = static_cast<int>(mine.size()) > needed;
      ChildPartitioner(n, holders, devices, result)
          .divide(Devices(mine.begin() + (keeps_first ? 1 : 0), mine.end()), to_divide);
    }
  }
}

} // namespace tessera::partitioning
