#pragma once

// Private to the planner: what searches enumerate and how one point is priced.

#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "tessera/planner/search.h"

namespace tessera::planner {

/// Degrees and microbatch size: a point of the space before placement.
struct Point {
  int pp = 1;
  int dp = 1;
  int tp = 1;
  int microbatch_size = 1;
  std::string tensor_kind = {}; // see cost::Strategy
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

/// Prices points of one model on one cluster.
class Pricer {
 public:
  Pricer(
      const cost::DescribedModel& model,
      const cost::Cluster& cluster,
      const SearchOptions& options)
      : model_(model), cluster_(cluster), options_(options) {}

  cost::Strategy strategy(const Point& point) const;
  /// Seconds that no layer assignment of the point can go below.
  double lower_bound(const Point& point, const cost::LayerTable& table) const;
  cost::LayerTable table(const Point& point) const;
  /// The strategy with its best layer assignment; nullopt when no assignment
  /// fits the devices. Where ranks of a host share its cores, the best of two:
  /// one made for ranks that compute alone, and one for ranks that always
  /// share.
  std::optional<Candidate> assigned(cost::Strategy strategy, const cost::LayerTable& table) const;
  /// With the boundaries it has, whether it fits or not.
  Candidate priced(cost::Strategy strategy) const;

 private:
  bool checkpointing() const;
  /// For each stage, ranks of its fullest host over the cores of that host.
  std::vector<double> crowding(const cost::Strategy& strategy) const;
  std::optional<Candidate> assigned(
      cost::Strategy strategy,
      const cost::LayerTable& table,
      const std::vector<double>& crowded) const;

  const cost::DescribedModel& model_;
  const cost::Cluster& cluster_;
  const SearchOptions& options_;
};

/// Baselines of section 4.1 and 4.5, and annealing from `start` (section 4.2).
std::vector<Candidate> megatron_heuristics(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options);
std::vector<Candidate> random_strategies(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options);
std::vector<Candidate> annealed(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options,
    const std::vector<Candidate>& start);

} // namespace tessera::planner
