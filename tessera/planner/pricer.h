#pragma once

#include <optional>
#include <vector>

#include "tessera/planner/candidate.h"
#include "tessera/planner/space.h"

namespace tessera::planner {

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

} // namespace tessera::planner
