#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/planner/search_options.h"

namespace tessera::planner {

/// A change that would make a strategy fit.
enum class Remedy {
  kOptimizerSharding,
  kRecomputation, // activation checkpointing of every layer
  kUnrunnable // taking a strategy that the runtime of this version cannot train with
};

/// The error that no strategy fits the devices' memory.
class NothingFits : public PlanError {
 public:
  NothingFits(const std::string& message, std::vector<Remedy> remedies)
      : PlanError(message), remedies_(std::move(remedies)) {}

  /// Returns the remedies, each of which is enough by itself.
  const std::vector<Remedy>& remedies() const {
    return remedies_;
  }

 private:
  std::vector<Remedy> remedies_;
};

/// Returns the error of a search that found nothing. It names the nearest strategy,
/// how much memory that lacks, and what would make it fit.
/// Throws: PlanError when the degrees do not make up the cluster.
NothingFits nothing_fits(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options);

} // namespace tessera::planner
