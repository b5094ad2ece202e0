#pragma once

#include <optional>
#include <vector>

#include "tessera/planner/candidate.h"
#include "tessera/planner/layer_assignment.h"
#include "tessera/planner/lower_bound.h"
#include "tessera/planner/space.h"

namespace tessera::planner {

/// Prices points of one model on one cluster. All arguments must outlive it.
class Pricer {
 public:
  Pricer(
      const cost::DescribedModel& model,
      const cost::Cluster& cluster,
      const SearchOptions& options)
      : model_(model), cluster_(cluster), options_(options), bound_(model, cluster, options) {}

  /// Returns the point as a strategy without placement and layer boundaries.
  cost::Strategy strategy(const Point& point) const;
  /// Returns seconds that no placement and no layer assignment of the point can go below.
  double lower_bound(const Point& point, const cost::LayerTable& table) const;
  cost::LayerTable table(const Point& point) const;
  /// Returns the strategy with its best layer assignment; nullopt when no assignment
  /// fits the devices. The assignment is the optimum of the pipelines' time; smaller largest
  /// stages, whose optimizer and gradients take less, are tried as long as one could still win. If
  /// stages share cores of hosts to different degrees, this is the better of two assignments: one
  /// for ranks that compute alone, and one for ranks that always share. Where ranks hold several
  /// stages in turns, it is good and not proved to be the optimum (decision 138).
  std::optional<Candidate> assigned(cost::Strategy strategy, const cost::LayerTable& table) const;
  /// Prices a strategy with the boundaries it has, whether it fits or not.
  Candidate priced(cost::Strategy strategy) const;
  /// Returns the seconds of an iteration in the simulator.
  double simulated_seconds(const cost::Strategy& strategy) const;

 private:
  bool checkpointing() const;
  /// Returns a strategy whose ranks hold several stages in turns, assigned as if each stage had its
  /// own rank, and then improved by moving single layers.
  std::optional<Candidate> assigned_in_turns(
      const cost::Strategy& strategy,
      const cost::LayerTable& table) const;
  /// Returns what the stages of a strategy take, without their memory.
  AssignmentProblem problem_of(
      const cost::Strategy& strategy,
      const cost::LayerTable& table,
      const cost::PlacementLinks& links,
      const std::vector<double>& crowded) const;
  /// Returns the bytes that a device of each pipeline rank has for tensors.
  std::vector<double> usable_bytes(const cost::PlacementLinks& links) const;
  /// Returns for each end the first layer of the longest run up to there that fits so many bytes of
  /// a stage's devices. A stage's memory grows with its layers, so the first layer that fits only
  /// moves forward; it falls only where one more layer makes devices wait for their hosts, which
  /// can leave out a run that would fit.
  std::vector<int> first_that_fit(
      const cost::Strategy& strategy,
      const cost::LayerTable& table,
      const cost::PlacementLinks& links,
      int stage,
      double usable) const;
  /// Returns for each pipeline rank the most ranks per core among its hosts, at least 1.
  std::vector<double> crowding(const cost::Strategy& strategy) const;
  std::optional<Candidate> assigned(
      cost::Strategy strategy,
      const cost::LayerTable& table,
      const std::vector<double>& crowded) const;

  const cost::DescribedModel& model_;
  const cost::Cluster& cluster_;
  const SearchOptions& options_;
  LowerBound bound_;
};

} // namespace tessera::planner
