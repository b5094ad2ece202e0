#pragma once

#include <string>
#include <vector>

#include "tessera/planner/search_options.h"

namespace tessera::planner {

/// Degrees and microbatch size: a point of the space before placement.
struct Point {
  int pp = 1;
  int dp = 1;
  int tp = 1;
  int microbatch_size = 1;
  cost::Distribution distribution = cost::Distribution::kAsMeasured;
  bool same_samples = false;
};

/// Orders of nodes and letters to lay devices out by.
struct Layout {
  std::vector<int> node_order;
  std::string letters;
};

/// All points: pp x dp x tp = devices, pp <= layers, tp measured everywhere,
/// dp x microbatch size divides the global batch. Tensor-parallel ranks that
/// bring samples of their own divide a microbatch.
std::vector<Point> points_of(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options);

/// Section 3.6: tensor-parallel ranks next to each other, then data-parallel
/// or pipeline ranks; nodes in the file's order and, where devices differ,
/// grouped by kind in either order of speed.
std::vector<Layout> layouts_of(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const Point& point,
    const SearchOptions& options);

/// Whether layers that share parameters are on different stages, which the
/// runtime refuses.
bool ties_apart(const cost::Strategy& strategy, const cost::DescribedModel& model);

std::vector<int> devices_in_order(const cost::Cluster& cluster, const std::vector<int>& node_order);

} // namespace tessera::planner
