#pragma once

#include <string>
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

/// Returns the placements to try: tensor-parallel ranks next to each other, then
/// data-parallel or pipeline ranks; nodes in the file's order and, if devices
/// differ, grouped by kind in either order of speed.
/// Source: Li et al. 2022, section 3.6.
std::vector<Layout> layouts_of(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const Point& point,
    const SearchOptions& options);

/// Returns whether layers that share parameters are on different stages, which the
/// runtime of this version refuses (abilities.h).
bool ties_apart(const cost::Strategy& strategy, const cost::DescribedModel& model);

/// Returns the devices of the cluster, node by node in `node_order`.
std::vector<int> devices_in_order(const cost::Cluster& cluster, const std::vector<int>& node_order);

} // namespace tessera::planner
