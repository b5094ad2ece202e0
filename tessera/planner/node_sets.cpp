#include "tessera/planner/node_sets.h"

#include <algorithm>
#include <map>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/index.h"
#include "tessera/planner/space.h"

namespace tessera::planner {

namespace {

// Returns every set of nodes, of alike ones the first.
std::vector<std::vector<int>> every_set(const cost::Cluster& cluster, bool alike_once) {
  const int count = static_cast<int>(cluster.nodes.size());
  std::vector<std::vector<int>> sets;
  std::set<std::vector<NodeLook>> seen;
  for (unsigned bits = (1u << count) - 1; bits > 0; --bits) {
    std::vector<int> set;
    std::vector<NodeLook> looks;
    for (int n = 0; n < count; ++n) {
      if ((bits >> (count - 1 - n) & 1u) != 0) { // descending numbers name first nodes first
        set.push_back(n);
        looks.push_back(look_of(cluster.nodes[at(n)]));
      }
    }
    if (!alike_once || seen.insert(looks).second) {
      sets.push_back(std::move(set));
    }
  }
  return sets;
}

// Returns what is left when the last nodes of an order are left out: one by one while few are, then
// by halves.
void add_beginnings(const std::vector<int>& order, std::set<std::vector<int>>& sets) {
  constexpr std::size_t kOneByOne = 16;
  for (std::size_t left = order.size(); left > 0;) {
    std::vector<int> set(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(left));
    std::sort(set.begin(), set.end());
    sets.insert(std::move(set));
    left = left <= kOneByOne || order.size() - left < kOneByOne ? left - 1 : left / 2;
  }
}

// Adds what is left when all nodes of the last kinds of an order are left out.
void add_kinds(
    const std::vector<int>& order,
    const cost::Cluster& cluster,
    std::set<std::vector<int>>& sets) {
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (cluster.nodes[at(order[i])].kind != cluster.nodes[at(order[i - 1])].kind) {
      std::vector<int> set(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(i));
      std::sort(set.begin(), set.end());
      sets.insert(std::move(set));
    }
  }
}

} // namespace

std::vector<std::vector<int>> node_sets(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options) {
  constexpr std::size_t kFew = 6;
  const int count = static_cast<int>(cluster.nodes.size());
  if (options.spare_nodes >= count) {
    throw ConfigError(
        str("spare nodes: found ",
            options.spare_nodes,
            "; write fewer than the ",
            count,
            " nodes of the cluster"));
  }
  std::vector<std::vector<int>> sets;
  if (cluster.nodes.size() <= kFew) {
    const bool alike_once =
        cluster.links.empty() && cluster.groups.empty() && cluster.collectives.empty();
    sets = every_set(cluster, alike_once);
  } else {
    SearchOptions any_order = options;
    any_order.keep_node_order = false;
    std::set<std::vector<int>> distinct;
    for (const std::vector<int>& order : node_orders(model, cluster, any_order)) {
      add_beginnings(order, distinct);
      add_kinds(order, cluster, distinct);
    }
    sets.assign(distinct.begin(), distinct.end());
  }
  std::erase_if(sets, [&](const std::vector<int>& set) {
    return static_cast<int>(set.size()) + options.spare_nodes > count;
  });
  std::stable_sort(
      sets.begin(), sets.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return sets;
}

cost::Cluster part_of(const cost::Cluster& cluster, const std::vector<int>& nodes) {
  std::map<int, int> place; // in the cluster -> in the part
  cost::Cluster part = cluster;
  part.nodes.clear();
  for (const int n : nodes) {
    place[n] = static_cast<int>(part.nodes.size());
    part.nodes.push_back(cluster.nodes[at(n)]);
  }
  part.links.clear();
  for (cost::NodeLink link : cluster.links) {
    if (place.count(link.first) != 0 && place.count(link.second) != 0) {
      link.first = place[link.first];
      link.second = place[link.second];
      part.links.push_back(link);
    }
  }
  part.groups = cost::groups_among(cluster.groups, nodes);
  part.collectives.clear();
  for (cost::CollectiveTime time : cluster.collectives) {
    const bool here = std::all_of(
        time.among.begin(), time.among.end(), [&](int n) { return place.count(n) != 0; });
    if (here && time.nodes <= static_cast<int>(nodes.size())) {
      for (int& n : time.among) {
        n = place[n];
      }
      part.collectives.push_back(std::move(time));
    }
  }
  return part;
}

void name_in_whole(
    Candidate& candidate,
    const cost::Cluster& cluster,
    const std::vector<int>& nodes) {
  const std::vector<int> devices = devices_in_order(cluster, nodes);
  for (int& device : candidate.strategy.device_of_rank) {
    device = devices[at(device)];
  }
  for (int& node : candidate.node_order) {
    node = nodes[at(node)];
  }
  candidate.leaves_out = nodes.size() < cluster.nodes.size();
}

} // namespace tessera::planner
