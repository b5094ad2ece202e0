#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "tessera/planner/search_options.h"

namespace tessera::planner {

/// A point of the search space: degrees and microbatch size, before placement.
struct Point {
  int pp = 1;
  int dp = 1;
  int tp = 1;
  int microbatch_size = 1;
  cost::Distribution distribution = cost::Distribution::kAsMeasured;
  bool same_samples = false; // all ranks of a tensor-parallel group bring the same samples
  int stages_per_rank = 1; // in turns; searched by planner/pipeline_variants.h, not as points
};

/// How ranks are placed on devices: an order of the nodes, and a placement strategy ("PDT").
struct Layout {
  std::vector<int> node_order;
  std::string letters;
};

/// Returns all points with pp x dp x tp = devices, pp <= layers, a tp that was
/// measured on every kind of device, and dp x microbatch size a divisor of the
/// global batch. Tensor-parallel ranks that bring different samples must divide a microbatch.
std::vector<Point> points_of(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options);

/// What a search sees of a node where no link and no collective names it.
using NodeLook = std::tuple<int, int, double, double, double, int, double, double, double>;
NodeLook look_of(const cost::Node& node);

/// Returns the orders of nodes to try: the file's, and if devices differ, grouped by kind in either
/// order of speed; if links differ, each of these also as a chain in which a node is followed by
/// the one that it reaches fastest, so that groups lie on islands of fast links; and all, where
/// those are few (SearchOptions::most_orders). Source: Li et al.
/// 2022, sections 3.3 and 3.6.
std::vector<std::vector<int>> node_orders(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options);

/// Returns the placements to try in these orders of nodes: tensor-parallel ranks next to each
/// other, then data-parallel or pipeline ranks.
/// Source: Li et al. 2022, section 3.6.
std::vector<Layout> layouts_of(const Point& point, const std::vector<std::vector<int>>& orders);
/// The same for the orders of `node_orders`.
std::vector<Layout> layouts_of(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const Point& point,
    const SearchOptions& options);

/// Returns whether layers that share parameters are on different pipeline ranks, which the
/// runtime of this version refuses (runtime_abilities.h).
bool ties_apart(const cost::Strategy& strategy, const cost::DescribedModel& model);

/// Returns the devices of the cluster, node by node in `node_order`.
std::vector<int> devices_in_order(const cost::Cluster& cluster, const std::vector<int>& node_order);

/// Throws: ConfigError with `name` where an order does not have each node of the cluster once.
void check_node_order(
    const std::vector<int>& order,
    const cost::Cluster& cluster,
    const std::string& name);

/// Returns boundaries of stages that have as many layers each, or one more.
std::vector<int> even_layers(int layers, int stages);

/// Returns for each node how many ranks of a placed strategy share one of its cores, at least 1.
std::vector<double> ranks_a_core(const cost::Strategy& strategy, const cost::Cluster& cluster);

} // namespace tessera::planner
