#pragma once

// Private to the planner: the ways to save memory, as a dimension of the search.

#include <vector>

#include "tessera/planner/search_options.h"

namespace tessera::planner {

/// One combination of ways to save memory and a schedule.
struct Saving {
  bool recomputes = false; // the activations of every layer
  bool keeps_products = false; // with `recomputes`: but for products with weights
  bool shards_state = false; // the optimizer's state among replicas
  bool shards_parameters = false; // and parameters and gradients
  bool offloads_state = false;
  bool offloads_activations = false;
  cost::Schedule schedule = cost::Schedule::kInterleaved;

  /// Returns whether anything is saved.
  bool saves() const {
    return recomputes || shards_state || shards_parameters || offloads_state ||
           offloads_activations;
  }
  /// Returns whether a strategy of one replica is the same without it.
  bool needs_replicas() const {
    return shards_state || shards_parameters;
  }
};

/// Returns the combinations that the search may add to what the options ask for: first the one that
/// adds nothing. With SearchOptions::runnable_only only what the runtime can do; offloading only
/// where every device's link to its host and its host's memory are known.
std::vector<Saving> savings_of(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options);

/// Returns the model and the options with a combination added.
cost::DescribedModel with_saving(cost::DescribedModel model, const Saving& saving);
SearchOptions with_saving(SearchOptions options, const Saving& saving);

} // namespace tessera::planner
