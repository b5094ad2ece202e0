#include "tessera/planner/nothing_fits.h"

#include <cstdio>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "tessera/planner/methods.h"
#include "tessera/planner/pricer.h"
#include "tessera/planner/runtime_abilities.h"

namespace tessera::planner {

namespace {

constexpr double kGibibyte = 1024.0 * 1024.0 * 1024.0;

// Returns the strategy with even layers that lacks the least memory.
Candidate nearest_to_fit(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options) {
  const Pricer pricer(model, cluster, options);
  std::optional<Candidate> nearest;
  double least = std::numeric_limits<double>::infinity();
  for (const Point& point : points_of(model, cluster, options)) {
    cost::Strategy strategy = pricer.strategy(point);
    strategy.boundaries = even_layers(static_cast<int>(model.layers.size()), point.pp);
    if (options.runnable_only && ties_apart(strategy, model)) {
      continue;
    }
    const Layout layout = layouts_of(model, cluster, point, options).front();
    strategy.device_of_rank =
        cost::lay_out(strategy, layout.letters, devices_in_order(cluster, layout.node_order));
    Candidate candidate = pricer.priced(std::move(strategy));
    const auto& stage =
        candidate.cost.stages[static_cast<std::size_t>(candidate.cost.fullest_stage)];
    const double lacks = stage.needed_bytes - stage.device_bytes;
    if (lacks < least) {
      least = lacks;
      nearest = std::move(candidate);
    }
  }
  if (!nearest) {
    throw PlanError(
        str("no strategy: no pipeline degree up to ",
            model.layers.size(),
            " layers and tensor degree that was measured",
            options.tensor_degree > 0 ? str(" and asked for (", options.tensor_degree, ")")
                                      : std::string(),
            " makes ",
            cluster.device_count(),
            " devices with data-parallel replicas that divide the global "
            "batch size ",
            model.global_batch_size,
            "; change the batch size or the number of devices"));
  }
  return *nearest;
}

std::string degrees_of(const cost::Strategy& strategy) {
  return str(
      "pp ",
      strategy.pp,
      ", dp ",
      strategy.dp,
      ", tp ",
      strategy.tp,
      ", microbatch size ",
      strategy.microbatch_size);
}

std::string gib(double bytes) {
  char text[32];
  if (bytes < kGibibyte / 10) {
    std::snprintf(text, sizeof text, "%.1f MiB", bytes / kGibibyte * 1024);
  } else {
    std::snprintf(text, sizeof text, "%.1f GiB", bytes / kGibibyte);
  }
  return text;
}

// Returns a strategy that fits, if the method "amp" finds one.
std::optional<Candidate> one_that_fits(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    SearchOptions options) {
  options.keep = 1;
  options.progress = {};
  const std::vector<Candidate> best = amp(model, cluster, options).best;
  return best.empty() ? std::nullopt : std::optional(best.front());
}

// Finds the remedies by a full search for one strategy that fits under each.
std::vector<Remedy> remedies_of(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options) {
  std::vector<Remedy> remedies;
  SearchOptions sharded = options;
  sharded.shard_optimizer_state = true;
  if (!options.shard_optimizer_state && one_that_fits(model, cluster, sharded)) {
    remedies.push_back(Remedy::kOptimizerSharding);
  }
  cost::DescribedModel checkpointed = model;
  checkpointed.activation_checkpointing = true;
  if (!model.activation_checkpointing && (!options.runnable_only || model.traced()) &&
      one_that_fits(checkpointed, cluster, options)) {
    remedies.push_back(Remedy::kRecomputation);
  }
  SearchOptions all = options;
  all.runnable_only = false;
  if (options.runnable_only && one_that_fits(model, cluster, all)) {
    remedies.push_back(Remedy::kUnrunnable);
  }
  return remedies;
}

std::string words_of(Remedy remedy, bool runnable_only) {
  const RuntimeAbilities can = runtime_abilities();
  const auto way = [runnable_only](const std::string& name, bool can_train) {
    return name + (runnable_only && !can_train
                       ? " (which this version prices but cannot train with)"
                       : "");
  };
  switch (remedy) {
    case Remedy::kOptimizerSharding:
      return way("optimizer sharding", can.optimizer_sharding);
    case Remedy::kRecomputation:
      return way("activation checkpointing of every layer", can.activation_checkpointing);
    case Remedy::kUnrunnable:
      return "a strategy that this version cannot train with";
  }
  return "";
}

} // namespace

NothingFits nothing_fits(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options) {
  const std::map<Method, std::string> kFew = {
      {Method::kRandom, "random"}, {Method::kMegatron, "megatron"}, {Method::kUniform, "uniform"}};
  if (const auto few = kFew.find(options.method); few != kFew.end()) {
    // These methods try few strategies, and may miss those that fit.
    if (const auto found = one_that_fits(model, cluster, options)) {
      return {
          str("no strategy that the method \"",
              few->second,
              "\" tried fits; the method \"amp\" finds one that does (",
              degrees_of(found->strategy),
              ")"),
          {}};
    }
  }
  const Candidate nearest = nearest_to_fit(model, cluster, options);
  const auto stage = static_cast<std::size_t>(nearest.cost.fullest_stage);
  const cost::StageCost& full = nearest.cost.stages[stage];
  std::string message =
      str("no strategy fits: the nearest (",
          degrees_of(nearest.strategy),
          ") needs ",
          gib(full.needed_bytes),
          " on every device of stage ",
          stage,
          ", ",
          gib(full.needed_bytes - full.device_bytes),
          " more than a device has");
  const std::vector<Remedy> remedies = remedies_of(model, cluster, options);
  for (std::size_t i = 0; i < remedies.size(); ++i) {
    message += (i == 0 ? "; it fits with " : " or ") + words_of(remedies[i], options.runnable_only);
  }
  if (remedies.empty()) {
    message +=
        "; add devices, take devices with that much more memory, or cut the "
        "model into more layers";
  }
  return {message, remedies};
}

} // namespace tessera::planner
