#include "tessera/planner/shares.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <utility>

#include "tessera/base/index.h"
#include "tessera/planner/best.h"
#include "tessera/planner/pricer.h"
#include "tessera/planner/space.h"

namespace tessera::planner {

namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();
constexpr double kDoesNotFit = kUnlimited; // seconds

bool has_kinds(const cost::Cluster& cluster) {
  return std::any_of(cluster.nodes.begin(), cluster.nodes.end(), [&](const cost::Node& node) {
    return node.kind != cluster.nodes.front().kind;
  });
}

// Of one point, by the samples of a microbatch.
using Tables = std::map<int, cost::LayerTable>;

// Divides the samples of a microbatch among the replicas of one placed strategy with boundaries.
class Division {
 public:
  Division(
      const cost::DescribedModel& model,
      const cost::Cluster& cluster,
      const SearchOptions& options,
      const cost::Strategy& strategy,
      Tables& tables)
      : model_(model),
        cluster_(cluster),
        options_(options),
        strategy_(strategy),
        links_(cost::place(strategy, cluster, options.constants)),
        microbatches_(strategy.microbatches(model.global_batch_size)),
        usable_(cost::usable_share(model, options.constants)),
        stalls_(cost::stalls(cluster, links_)),
        crowding_(ranks_a_core(strategy, cluster)),
        tables_(tables) {
    const std::vector<int> node_of_device = cluster.node_of_device();
    for (const int device : strategy.device_of_rank) {
      nodes_.push_back(node_of_device[at(device)]);
    }
    for (int d = 0; d < strategy.dp; ++d) {
      const Kinds kinds = kinds_of(d);
      const auto known = std::find(kinds_.begin(), kinds_.end(), kinds);
      like_.push_back(static_cast<int>(known - kinds_.begin()));
      if (known == kinds_.end()) {
        kinds_.push_back(kinds);
      }
    }
  }

  // Returns whether some replica's devices differ from another's.
  bool replicas_differ() const {
    return kinds_.size() > 1;
  }

  // Returns the samples of each replica; nullopt where memory does not hold them, or where equal
  // ones are best.
  std::optional<std::vector<int>> samples() {
    // Ranks of a tensor-parallel group that bring samples of their own bring equally many.
    const int together = strategy_.same_samples ? 1 : strategy_.tp;
    const int all = strategy_.dp * strategy_.microbatch_size;
    std::vector<int> given(at(strategy_.dp), 0);
    using Next = std::pair<double, int>; // when a replica has done one more, and which
    std::priority_queue<Next, std::vector<Next>, std::greater<>> queue;
    for (int d = 0; d < strategy_.dp; ++d) { // every replica needs some
      given[at(d)] = together;
      if (seconds_of(d, together) == kDoesNotFit) {
        return std::nullopt;
      }
      queue.emplace(seconds_of(d, 2 * together), d);
    }
    for (int sum = strategy_.dp * together; sum + together <= all; sum += together) {
      const auto [seconds, replica] = queue.top();
      if (seconds == kDoesNotFit) {
        return std::nullopt;
      }
      queue.pop();
      given[at(replica)] += together;
      queue.emplace(seconds_of(replica, given[at(replica)] + together), replica);
    }
    const bool alike =
        std::all_of(given.begin(), given.end(), [&](int one) { return one == given.front(); });
    const int sum = std::accumulate(given.begin(), given.end(), 0);
    return alike || sum != all ? std::nullopt : std::optional(given);
  }

 private:
  // The kinds of a replica's devices, and how crowded their hosts are.
  using Kinds = std::vector<std::pair<int, double>>;

  Kinds kinds_of(int replica) const {
    Kinds kinds;
    for (int k = 0; k < strategy_.pp; ++k) {
      for (int t = 0; t < strategy_.tp; ++t) {
        const std::size_t node = at(nodes_[at(strategy_.rank(k, replica, t))]);
        kinds.emplace_back(cluster_.nodes[node].kind, crowding_[node]);
      }
    }
    return kinds;
  }

  // Returns the seconds of a replica's pipeline with so many samples a microbatch; infinity where
  // a device does not hold them, or their cost is not known.
  double seconds_of(int replica, int samples) {
    const int alike = like_[at(replica)];
    const auto [known, is_new] = seconds_.emplace(std::pair(alike, samples), kDoesNotFit);
    if (is_new) {
      if (const cost::LayerTable* table = table_of(samples)) {
        known->second = pipeline_seconds(kinds_[at(alike)], *table);
      }
    }
    return known->second;
  }

  double pipeline_seconds(const Kinds& kinds, const cost::LayerTable& table) const {
    double sum = 0;
    double most = 0;
    for (int k = 0; k < strategy_.pp; ++k) {
      const auto [first, last] = strategy_.layers_of(k);
      const cost::PassSeconds tensor = table.tensor_seconds(first, last, links_.stages[at(k)]);
      double slowest = 0;
      double waiting = 0;
      double has = kUnlimited;
      for (int t = 0; t < strategy_.tp; ++t) {
        const auto& [kind, crowding] = kinds[at(k * strategy_.tp + t)];
        slowest = std::max(slowest, crowding * table.compute_seconds(kind, first, last));
        waiting = std::max(
            waiting,
            cost::waiting_seconds(table, cluster_, links_, strategy_.tp, kind, k, {first, last}));
        has = std::min(has, cluster_.kinds[at(kind)].memory_bytes);
      }
      const cost::StageState state = cost::stage_state(
          strategy_,
          cost::in_flight(strategy_, k, microbatches_),
          microbatches_,
          cost::host_pace(stalls_, waiting));
      const double needs = table.memory(first, last, state).total();
      if ((needs + options_.constants.context_bytes) / usable_ > has) {
        return kDoesNotFit;
      }
      const double seconds = slowest + tensor.forward + tensor.backward;
      sum += seconds;
      most = std::max(most, seconds);
    }
    return (microbatches_ - 1) * most + sum;
  }

  const cost::LayerTable* table_of(int samples) {
    const cost::DividedModel* divided =
        model_.divided_in({strategy_.tp, strategy_.distribution, strategy_.same_samples});
    const cost::TracedPart* part = divided != nullptr           ? &divided->part
                                   : model_.traced() != nullptr ? &model_.traced()->whole
                                                                : nullptr;
    if (part != nullptr && part->tail_collectives.count(samples) == 0) {
      return nullptr; // a size that was not priced
    }
    auto found = tables_.find(samples);
    if (found == tables_.end()) {
      cost::Strategy of_size = strategy_;
      of_size.microbatch_size = samples;
      found =
          tables_.emplace(samples, cost::LayerTable(model_, cluster_, of_size, options_.constants))
              .first;
    }
    return &found->second;
  }

  const cost::DescribedModel& model_;
  const cost::Cluster& cluster_;
  const SearchOptions& options_;
  const cost::Strategy& strategy_;
  cost::PlacementLinks links_;
  int microbatches_;
  double usable_; // share of a device's memory
  bool stalls_; // whether the network does
  std::vector<int> nodes_; // of each virtual rank
  std::vector<double> crowding_; // ranks a core, of each node
  Tables& tables_;
  std::vector<Kinds> kinds_; // of replicas that differ
  std::vector<int> like_; // for each replica, of which of them it is
  std::map<std::pair<int, int>, double> seconds_; // by these, and samples
};

// Returns the point under its best placement with unlike replicas.
std::optional<Candidate> best_of(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options,
    const Pricer& pricer,
    const Point& point) {
  const cost::LayerTable table = pricer.table(point);
  std::optional<Candidate> best;
  Tables tables;
  for (const Layout& layout : layouts_of(model, cluster, point, options)) {
    cost::Strategy strategy = pricer.strategy(point);
    strategy.placement = layout.letters;
    strategy.device_of_rank =
        cost::lay_out(strategy, layout.letters, devices_in_order(cluster, layout.node_order));
    strategy.boundaries = even_layers(table.layers(), point.pp);
    if (!Division(model, cluster, options, strategy, tables).replicas_differ()) {
      continue;
    }
    if (auto equal = pricer.assigned(strategy, table)) {
      strategy.boundaries = std::move(equal->strategy.boundaries);
    }
    auto samples = Division(model, cluster, options, strategy, tables).samples();
    if (!samples || (options.runnable_only && ties_apart(strategy, model))) {
      continue;
    }
    strategy.microbatch_size = *std::max_element(samples->begin(), samples->end());
    strategy.replica_microbatch = std::move(*samples);
    Candidate candidate = pricer.priced(std::move(strategy));
    if (candidate.cost.fits() && (!best || candidate.cost.seconds < best->cost.seconds)) {
      candidate.node_order = layout.node_order;
      best = std::move(candidate);
    }
  }
  return best;
}

} // namespace

void add_unlike_replicas(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options,
    std::vector<Candidate>& best) {
  const bool searches = options.method == Method::kAmp || options.method == Method::kAnnealing;
  // Where there are more, many pricings of many replicas take longer than the search.
  constexpr int kMostDevices = 256;
  if (!options.unlike_samples || !searches || !has_kinds(cluster) ||
      cluster.device_count() > kMostDevices) {
    return;
  }
  constexpr std::size_t kMostPoints = 32;
  // What is faster by less is so by rounding of samples more than by their division.
  constexpr double kWorthIt = 0.995;
  const double limit = best.empty() ? kDoesNotFit : best.front().cost.seconds * kWorthIt;
  const Pricer pricer(model, cluster, options);
  std::vector<std::pair<double, Point>> points; // with their bounds
  for (const Point& point : points_of(model, cluster, options)) {
    if (point.dp > 1) {
      const double bound = pricer.lower_bound(point, pricer.table(point));
      if (bound < limit) {
        points.emplace_back(bound, point);
      }
    }
  }
  std::stable_sort(
      points.begin(), points.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  points.resize(std::min(points.size(), kMostPoints));
  Best found(options.keep, limit);
  for (const auto& [bound, point] : points) {
    if (options.stop != nullptr && options.stop->load()) {
      break;
    }
    if (bound < found.worst()) {
      if (auto candidate = best_of(model, cluster, options, pricer, point)) {
        found.add(std::move(*candidate));
      }
    }
  }
  best.insert(
      best.begin(),
      std::make_move_iterator(found.candidates().begin()),
      std::make_move_iterator(found.candidates().end()));
}

} // namespace tessera::planner
