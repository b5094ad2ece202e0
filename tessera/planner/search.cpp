#include "tessera/planner/search.h"

#include <algorithm>
#include <utility>

#include "tessera/planner/abilities.h"
#include "tessera/planner/best.h"
#include "tessera/planner/methods.h"
#include "tessera/planner/nothing_fits.h"
#include "tessera/planner/pricer.h"
#include "tessera/simulator/simulate.h"

namespace tessera::planner {

namespace {

// Returns the best under each way to save memory that was not taken.
std::vector<Candidate> saving_memory(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options) {
  const bool may_recompute =
      !model.activation_checkpointing &&
      (!options.runnable_only || runtime_abilities().activation_checkpointing);
  const bool may_shard = !options.shard_optimizer_state &&
                         (!options.runnable_only || runtime_abilities().optimizer_sharding);
  std::vector<Candidate> found;
  for (const bool recomputes : {false, true}) {
    for (const bool shards : {false, true}) {
      if ((recomputes && !may_recompute) || (shards && !may_shard) || !(recomputes || shards)) {
        continue;
      }
      cost::DescribedModel changed = model;
      changed.activation_checkpointing = model.activation_checkpointing || recomputes;
      SearchOptions wider = options;
      wider.shard_optimizer_state = options.shard_optimizer_state || shards;
      for (Candidate& candidate : amp(changed, cluster, wider).best) {
        found.push_back(std::move(candidate));
      }
    }
  }
  return found;
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
  } else if (options.method == Method::kRandom) {
    sorted(random_strategies(model, cluster, options));
    result.interrupted = stopped();
  } else {
    result = amp(model, cluster, options);
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
  if (result.best.empty() && !result.interrupted && options.save_memory) {
    sorted(saving_memory(model, cluster, options));
    result.interrupted = stopped();
  }
  if (result.best.empty() && !result.interrupted) {
    throw nothing_fits(model, cluster, options);
  }
  return result;
}

} // namespace

SearchResult search(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options) {
  SearchOptions wider = options;
  wider.keep = std::max(options.keep, options.simulate);
  SearchResult result = search_by_estimate(model, cluster, wider);
  if (options.simulate > 0) {
    for (Candidate& candidate : result.best) {
      candidate.simulated_seconds = simulator::simulate(
                                        model,
                                        cluster,
                                        candidate.strategy,
                                        {.keep_events = false, .constants = options.constants})
                                        .iteration_seconds;
    }
    std::stable_sort(
        result.best.begin(), result.best.end(), [](const Candidate& a, const Candidate& b) {
          return a.seconds() < b.seconds();
        });
  }
  if (result.best.size() > static_cast<std::size_t>(options.keep)) {
    result.best.resize(static_cast<std::size_t>(options.keep));
  }
  return result;
}

} // namespace tessera::planner
