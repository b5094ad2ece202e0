#include "tessera/planner/search.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/planner/abilities.h"
#include "tessera/planner/space.h"
#include "tessera/simulator/simulate.h"

namespace tessera::planner {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

// The best so far, and what is not among them.
class Best {
 public:
  explicit Best(int keep) : keep_(static_cast<std::size_t>(keep)) {}

  void add(Candidate candidate) {
    const auto place = std::upper_bound(
        candidates_.begin(),
        candidates_.end(),
        candidate.cost.seconds,
        [](double seconds, const Candidate& other) { return seconds < other.cost.seconds; });
    candidates_.insert(place, std::move(candidate));
    if (candidates_.size() > keep_) {
      candidates_.pop_back();
    }
  }

  double worst() const {
    if (candidates_.size() < keep_) {
      return kNever;
    }
    return candidates_.back().cost.seconds;
  }

  double best() const {
    if (candidates_.empty()) {
      return kNever;
    }
    return candidates_.front().cost.seconds;
  }

  std::vector<Candidate>& candidates() {
    return candidates_;
  }

 private:
  std::size_t keep_;
  std::vector<Candidate> candidates_;
};

bool stopped(const SearchOptions& options) {
  return options.stop != nullptr && options.stop->load();
}

SearchResult
amp(const cost::DescribedModel& model, const cost::Cluster& cluster, const SearchOptions& options) {
  const Pricer pricer(model, cluster, options);
  const std::vector<Point> points = points_of(model, cluster, options);
  SearchResult result;
  Best best(options.keep);
  SearchProgress progress{
      .done = 0, .total = static_cast<int>(points.size()), .best_seconds = kNever};
  for (const Point& point : points) {
    if (stopped(options)) {
      result.interrupted = true;
      break;
    }
    const cost::LayerTable table = pricer.table(point);
    if (pricer.lower_bound(point, table) < best.worst()) {
      // Of the placements of one point only the best is a strategy of its own.
      std::optional<Candidate> of_point;
      for (const Layout& layout : layouts_of(model, cluster, point, options)) {
        cost::Strategy strategy = pricer.strategy(point);
        strategy.placement = layout.letters;
        strategy.device_of_rank =
            cost::lay_out(strategy, layout.letters, devices_in_order(cluster, layout.node_order));
        auto candidate = pricer.assigned(std::move(strategy), table);
        if (candidate && candidate->cost.fits() &&
            !(options.runnable_only && ties_apart(candidate->strategy, model)) &&
            (!of_point || candidate->cost.seconds < of_point->cost.seconds)) {
          candidate->node_order = layout.node_order;
          of_point = std::move(candidate);
        }
      }
      if (of_point) {
        best.add(std::move(*of_point));
      }
    }
    ++result.considered;
    progress.done = result.considered;
    progress.best_seconds = best.best();
    if (options.progress) {
      options.progress(progress);
    }
  }
  result.best = std::move(best.candidates());
  return result;
}

// The strategy that lacks the least memory, with even layers.
Candidate nearest_to_fit(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options) {
  const Pricer pricer(model, cluster, options);
  std::optional<Candidate> nearest;
  double least = kNever;
  for (const Point& point : points_of(model, cluster, options)) {
    cost::Strategy strategy = pricer.strategy(point);
    const int layers = static_cast<int>(model.layers.size());
    for (int k = 0; k <= point.pp; ++k) {
      strategy.boundaries.push_back(layers * k / point.pp);
    }
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

std::string gib(double bytes) {
  char text[32];
  if (bytes < kGib / 10) {
    std::snprintf(text, sizeof text, "%.1f MiB", bytes / kGib * 1024);
  } else {
    std::snprintf(text, sizeof text, "%.1f GiB", bytes / kGib);
  }
  return text;
}

bool anything_fits(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    SearchOptions options) {
  options.keep = 1;
  options.progress = {};
  return !amp(model, cluster, options).best.empty();
}

[[noreturn]] void refuse(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options) {
  const Candidate nearest = nearest_to_fit(model, cluster, options);
  const auto stage = static_cast<std::size_t>(nearest.cost.fullest_stage);
  const cost::StageCost& full = nearest.cost.stages[stage];
  std::string message =
      str("no strategy fits: the nearest (pp ",
          nearest.strategy.pp,
          ", dp ",
          nearest.strategy.dp,
          ", tp ",
          nearest.strategy.tp,
          ", microbatch size ",
          nearest.strategy.microbatch_size,
          ") needs ",
          gib(full.needed_bytes),
          " on every device of stage ",
          stage,
          ", ",
          gib(full.needed_bytes - full.device_bytes),
          " more than a device has");
  std::vector<std::string> ways;
  SearchOptions sharded = options;
  sharded.shard_optimizer_state = true;
  const RuntimeAbilities can = runtime_abilities();
  const auto way = [&options](const std::string& name, bool can_train) {
    return name + (options.runnable_only && !can_train
                       ? " (which this version prices but cannot train with)"
                       : "");
  };
  if (!options.shard_optimizer_state && anything_fits(model, cluster, sharded)) {
    ways.push_back(way("optimizer sharding", can.optimizer_sharding));
  }
  cost::DescribedModel checkpointed = model;
  checkpointed.activation_checkpointing = true;
  if (!model.activation_checkpointing && (!options.runnable_only || model.traced()) &&
      anything_fits(checkpointed, cluster, options)) {
    ways.push_back(way("activation checkpointing of every layer", can.activation_checkpointing));
  }
  SearchOptions all = options;
  all.runnable_only = false;
  if (options.runnable_only && anything_fits(model, cluster, all)) {
    ways.emplace_back(
        "a strategy that this version cannot train with (search without "
        "--runnable; --explain says what it lacks)");
  }
  for (std::size_t i = 0; i < ways.size(); ++i) {
    message += (i == 0 ? "; it fits with " : " or ") + ways[i];
  }
  if (ways.empty()) {
    message +=
        "; add devices, take devices with that much more memory, or cut the "
        "model into more layers";
  }
  throw PlanError(message);
}

} // namespace

namespace {

SearchResult search_by_estimate(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options) {
  // A table at degree 1 names every device that was not measured.
  Pricer(model, cluster, options).table({});
  SearchResult result;
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
  if (options.method == "megatron") {
    sorted(megatron_heuristics(model, cluster, options));
  } else if (options.method == "random") {
    sorted(random_strategies(model, cluster, options));
  } else if (options.method == "amp" || options.method == "annealing") {
    result = amp(model, cluster, options);
    if (options.method == "annealing" && !result.best.empty()) {
      const bool interrupted = result.interrupted;
      const int considered = result.considered;
      std::vector<Candidate> all = result.best;
      for (auto& one : annealed(model, cluster, options, result.best)) {
        all.push_back(std::move(one));
      }
      sorted(std::move(all));
      result.considered += considered;
      result.interrupted = interrupted || stopped(options);
    }
  } else {
    throw ConfigError(
        str("--method: found \"",
            options.method,
            "\"; write \"amp\", \"annealing\", \"megatron\" or \"random\""));
  }
  if (result.best.empty() && !result.interrupted) {
    refuse(model, cluster, options);
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
