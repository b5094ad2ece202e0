#include "tessera/planner/search.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "tessera/planner/best.h"
#include "tessera/planner/cut_moves.h"
#include "tessera/planner/methods.h"
#include "tessera/planner/node_sets.h"
#include "tessera/planner/nothing_fits.h"
#include "tessera/planner/objective.h"
#include "tessera/planner/pipeline_variants.h"
#include "tessera/planner/pricer.h"
#include "tessera/planner/savings.h"
#include "tessera/planner/shares.h"
#include "tessera/planner/simplest.h"
#include "tessera/planner/to_config.h"
#include "tessera/planner/whole_layers.h"

namespace tessera::planner {

namespace {

// Adds the best under each of these combinations.
void search_savings(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options,
    const std::vector<Saving>& savings,
    Best& best,
    SearchResult& result) {
  for (const Saving& saving : savings) {
    const SearchOptions divided = with_saving(options, saving);
    amp_into(
        with_saving(model, saving),
        cluster,
        divided,
        [&](const Point& point) {
          // With one replica nothing is divided, and with one stage there is no schedule. What
          // must run divides parameters only where the configuration's own checks allow it.
          return (point.dp > 1 || !saving.needs_replicas()) &&
                 (!options.runnable_only || !saving.shards_parameters ||
                  !sharding_refusal(Pricer(model, cluster, divided).strategy(point))) &&
                 (point.pp > 1 || saving.schedule == savings.front().schedule);
        },
        best,
        result);
  }
}

// Adds what recomputes activations where it is faster than the best of all that does not.
void add_faster_by_recomputing(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options,
    SearchResult& result) {
  std::vector<Saving> savings = savings_of(model, cluster, options);
  std::erase_if(savings, [](const Saving& saving) {
    return !saving.recomputes || saving.needs_replicas() || saving.offloads_activations;
  });
  Best faster(options.keep, result.best.front().cost.seconds);
  search_savings(model, cluster, options, savings, faster, result);
  Best best(options.keep);
  for (auto* some : {&faster.candidates(), &result.best}) {
    for (Candidate& candidate : *some) {
      best.add(std::move(candidate));
    }
  }
  result.best = std::move(best.candidates());
}

SearchResult search_by_estimate(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options) {
  // This throws if the model was not measured on a kind of device, before any search.
  Pricer(model, cluster, options).table({});
  SearchResult result;
  const auto stopped = [&] { return options.stop != nullptr && options.stop->load(); };
  const auto sorted = [&](std::vector<Candidate> candidates) {
    Best best(options.keep);
    for (Candidate& candidate : candidates) {
      ++result.considered;
      if (candidate.cost.fits()) {
        best.add(std::move(candidate));
      }
    }
    result.best = std::move(best.candidates());
  };
  if (options.method == Method::kMegatron) {
    sorted(megatron_heuristics(model, cluster, options));
    result.interrupted = stopped();
  } else if (options.method == Method::kUniform) {
    sorted(uniform_strategies(model, cluster, options));
    result.interrupted = stopped();
  } else if (options.method == Method::kRandom) {
    sorted(random_strategies(model, cluster, options));
    result.interrupted = stopped();
  } else {
    std::vector<Saving> savings = savings_of(model, cluster, options);
    if (!options.compare_savings) {
      // Those of the schedules alone.
      std::erase_if(savings, [](const Saving& saving) { return saving.saves(); });
    }
    Best best(options.keep);
    result.lower_bound = std::numeric_limits<double>::infinity();
    search_savings(model, cluster, options, savings, best, result);
    result.best = std::move(best.candidates());
    if (options.method == Method::kAnnealing && !result.best.empty()) {
      const bool interrupted = result.interrupted;
      const int considered = result.considered;
      std::vector<Candidate> all = result.best;
      for (auto& one : annealed(model, cluster, options, result.best)) {
        all.push_back(std::move(one));
      }
      sorted(std::move(all));
      result.considered += considered;
      result.interrupted = interrupted || stopped();
    }
  }
  if (!result.best.empty() && !result.interrupted && options.can_recompute &&
      options.method == Method::kAmp && !options.compare_savings) {
    add_faster_by_recomputing(model, cluster, options, result);
  }
  if (result.best.empty() && !result.interrupted && options.save_memory &&
      !options.compare_savings) {
    std::vector<Saving> savings = savings_of(model, cluster, options);
    std::erase_if(savings, [](const Saving& saving) { return !saving.saves(); });
    Best best(options.keep);
    search_savings(model, cluster, options, savings, best, result);
    result.best = std::move(best.candidates());
  }
  if (result.best.empty() && !result.interrupted) {
    throw nothing_fits(model, cluster, options);
  }
  if (result.interrupted || options.method == Method::kMegatron ||
      options.method == Method::kUniform || options.method == Method::kRandom) {
    result.lower_bound = 0;
  } else {
    // Points that were passed over are bounded by more than the best.
    result.lower_bound = std::min(result.lower_bound, result.best.front().cost.seconds);
  }
  return result;
}

// Searches all nodes of a cluster.
SearchResult search_all_nodes(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options) {
  // What these methods would not find themselves is not added to what they do.
  const bool baseline = options.method == Method::kMegatron || options.method == Method::kUniform ||
                        options.method == Method::kRandom;
  SearchOptions wider = options;
  wider.keep = std::max(options.keep, options.simulate);
  SearchResult result;
  try {
    result = search_by_estimate(model, cluster, wider);
    if (!baseline) {
      add_unlike_replicas(model, cluster, wider, result.best);
    }
  } catch (const NothingFits&) {
    if (!baseline) {
      add_unlike_replicas(model, cluster, wider, result.best); // samples follow memory
    }
    if (result.best.empty()) {
      throw;
    }
  }
  const Pricer pricer(model, cluster, options);
  for (Candidate& candidate : result.best) {
    candidate.can_recompute = options.can_recompute;
    candidate.microbatches = candidate.strategy.microbatches(model.global_batch_size);
    if (options.simulate > 0) {
      candidate.simulated_seconds = pricer.simulated_seconds(candidate.strategy);
    }
  }
  if (!baseline) {
    add_whole_layers(model, cluster, options, result.best);
  }
  if (!baseline && options.simulate > 0) {
    add_pipeline_variants(model, cluster, options, result.best);
    move_cuts(model, cluster, options, result.best);
  }
  std::stable_sort(
      result.best.begin(), result.best.end(), [](const Candidate& a, const Candidate& b) {
        return a.seconds() < b.seconds();
      });
  return result;
}

// Searches every set of nodes, and names what is found as the whole cluster does.
SearchResult search_node_sets(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options) {
  SearchResult result;
  result.lower_bound = std::numeric_limits<double>::infinity();
  std::optional<NothingFits> nothing;
  for (const std::vector<int>& nodes : node_sets(model, cluster, options)) {
    if (options.stop != nullptr && options.stop->load()) {
      result.interrupted = true;
      break;
    }
    SearchResult part;
    try {
      part = search_all_nodes(model, part_of(cluster, nodes), options);
    } catch (const NothingFits& error) {
      if (!nothing) {
        nothing = error; // of the largest set
      }
      continue;
    } catch (const PlanError&) {
      continue; // no degrees make up these devices
    }
    result.considered += part.considered;
    result.interrupted = result.interrupted || part.interrupted;
    result.lower_bound = std::min(result.lower_bound, part.lower_bound);
    for (Candidate& candidate : part.best) {
      name_in_whole(candidate, cluster, nodes);
      result.best.push_back(std::move(candidate));
    }
  }
  if (result.best.empty() && !result.interrupted) {
    if (nothing) {
      throw *nothing;
    }
    throw nothing_fits(model, cluster, options); // names what the degrees lack
  }
  if (result.interrupted) {
    result.lower_bound = 0;
  }
  return result;
}

cost::Cluster limited(cost::Cluster cluster, double memory_limit_bytes) {
  for (cost::DeviceKind& kind : cluster.kinds) {
    if (memory_limit_bytes > 0) {
      kind.memory_bytes = std::min(kind.memory_bytes, memory_limit_bytes);
    }
  }
  return cluster;
}

bool costs_are_known(const cost::Cluster& cluster) {
  return std::any_of(cluster.kinds.begin(), cluster.kinds.end(), [](const auto& kind) {
    return kind.price_per_hour > 0 || kind.watts > 0;
  });
}

} // namespace

double SearchResult::gap() const {
  return best.front().cost.seconds / lower_bound - 1;
}

SearchResult search(
    const cost::DescribedModel& model,
    const cost::Cluster& whole,
    const SearchOptions& options) {
  check_objective(options.objective, whole);
  const cost::Cluster cluster = limited(whole, options.memory_limit_bytes);
  SearchOptions wider = options;
  if (options.objective != Objective::kTime) {
    // A strategy that is not among the fastest may wait less.
    constexpr int kAll = 1000;
    wider.keep = std::max(options.keep, kAll);
  }
  const bool chooses = cluster.quality.rounds > 0 && options.objective == Objective::kTime &&
                       (options.method == Method::kAmp || options.method == Method::kAnnealing);
  if (chooses) {
    constexpr int kAlternatives = 10; // of which the simplest may be the first
    wider.keep = std::max(options.keep, kAlternatives);
  }
  const bool sets =
      options.subsets || options.spare_nodes > 0 || options.objective != Objective::kTime;
  SearchResult result =
      sets ? search_node_sets(model, cluster, wider) : search_all_nodes(model, cluster, wider);
  if (costs_are_known(cluster)) {
    result.front = front_of(result.best, cluster);
  }
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < result.best.size(); ++i) {
    const Candidate& candidate = result.best[i];
    const double value = options.objective == Objective::kTime
                             ? candidate.seconds()
                             : value_of(options.objective, step_costs(candidate, cluster));
    order.emplace_back(value, i);
  }
  std::stable_sort(order.begin(), order.end());
  std::vector<Candidate> best;
  for (const auto& [value, index] : order) {
    best.push_back(std::move(result.best[index]));
  }
  if (chooses) {
    result.prefers_simplest = prefer_simplest(best, model, cluster);
  }
  best.erase(best.begin() + std::min<std::ptrdiff_t>(std::ssize(best), options.keep), best.end());
  result.best = std::move(best);
  return result;
}

} // namespace tessera::planner
