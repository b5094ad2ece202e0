#include "tessera/planner/lower_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "tessera/base/index.h"
#include "tessera/cost/collective.h"
#include "tessera/cost/strategy_cost.h"
#include "tessera/planner/layer_assignment.h"

namespace tessera::planner {

namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();

// What sums in another order may differ by.
constexpr double kRounding = 1 - 1e-12;

// Returns the seconds of a layer on the one of these kinds of device that is fastest for it.
double least_compute(const cost::LayerTable& table, const std::vector<int>& kinds, int layer) {
  double least = kImpossible;
  for (const int kind : kinds) {
    least = std::min(least, table.compute_seconds(kind, layer, layer + 1));
  }
  return least;
}

// Returns what the largest of `stages` runs of layers has at the least, to a relative 1e-12.
double least_largest(const std::vector<double>& layers, int stages) {
  double low = 0;
  double high = 0;
  for (const double layer : layers) {
    low = std::max(low, layer);
    high += layer;
  }
  low = std::max(low, high / stages) * kRounding;
  const auto enough = [&](double bound) {
    int used = 1;
    double sum = 0;
    for (const double layer : layers) {
      if (sum + layer > bound) {
        ++used;
        sum = 0;
      }
      sum += layer;
    }
    return used <= stages;
  };
  if (enough(low / kRounding / kRounding)) {
    return low;
  }
  for (int i = 0; i < 60 && high - low > 1e-12 * high; ++i) {
    const double middle = low + (high - low) / 2;
    (enough(middle) ? high : low) = middle;
  }
  return low;
}

} // namespace

LowerBound::LowerBound(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options)
    : model_(model), cluster_(cluster), options_(options) {
  const cost::Constants& constants = options.constants;
  double fastest = 0;
  double latency = std::min(constants.link_latency_seconds, constants.device_latency_seconds);
  double message = constants.link_latency_seconds;
  for (const cost::Node& node : cluster.nodes) {
    if (std::find(kinds_.begin(), kinds_.end(), node.kind) == kinds_.end()) {
      kinds_.push_back(node.kind);
    }
    fastest = std::max(
        {fastest,
         node.count > 1 ? node.intra_bytes_per_s : 0,
         cluster.nodes.size() > 1 ? node.inter_bytes_per_s : 0});
    // What a measured cluster says of messages is in the constant of collectives.
    const double inside = cluster.measured ? 0 : node.latency_seconds;
    for (const double said : {node.network_latency_seconds, inside}) {
      latency = said > 0 ? std::min(latency, said) : latency;
    }
    message = node.latency_seconds > 0 ? std::min(message, node.latency_seconds) : message;
  }
  for (const cost::NodeLink& link : cluster.links) {
    message = link.latency_seconds > 0 ? std::min(message, link.latency_seconds) : message;
  }
  const bool told_apart =
      std::any_of(cluster.nodes.begin(), cluster.nodes.end(), [&](const cost::Node& node) {
        return node.network_latency_seconds > 0 || (!cluster.measured && node.latency_seconds > 0);
      });
  ideal_.tensor_bytes_per_s = fastest * constants.link_efficiency;
  // Over several nodes an all-reduce may have few steps, so none are counted.
  const bool has_trees = cluster.nodes.size() > 1 && !cluster.measured;
  ideal_.tensor_step.inside = has_trees ? 0 : told_apart ? latency : constants.link_latency_seconds;
  ideal_.tensor_nodes = {{1, {}}};
  ideal_.next_bytes_per_s = fastest * constants.link_efficiency;
  latency_seconds_ = message;
}

double LowerBound::tensor_seconds(const cost::LayerTable& table, int last) const {
  if (!cluster_.collectives.empty()) {
    return 0;
  }
  const cost::PassSeconds traffic = table.tensor_seconds(0, last, ideal_);
  return traffic.forward + traffic.backward;
}

double LowerBound::send_seconds(const cost::LayerTable& table, int cut) const {
  return table.cut_bytes(cut) / ideal_.next_bytes_per_s + latency_seconds_;
}

cost::HostPace LowerBound::least_holding(
    const cost::Strategy& strategy,
    const cost::LayerTable& table) const {
  if (cluster_.stalls() || (cluster_.stalling_group_nodes > 0 && strategy.pp > 1)) {
    return cost::HostPace::kStalled;
  }
  const bool may_wait = std::any_of(kinds_.begin(), kinds_.end(), [&](int kind) {
    return table.host_seconds(kind, 0, table.layers()) > 0;
  });
  return may_wait ? cost::HostPace::kLevel : cost::HostPace::kAhead;
}

double LowerBound::deferred_seconds(const cost::Strategy& strategy, const cost::LayerTable& table)
    const {
  double most = 0;
  for (const int kind : strategy.pp > 1 ? kinds_ : std::vector<int>{}) {
    most = std::max(
        most, table.deferred_seconds(kind, 0, table.layers()) + table.tail_deferred_seconds(kind));
  }
  return most;
}

double LowerBound::assigned_seconds(const cost::Strategy& strategy, const cost::LayerTable& table)
    const {
  const int layers = table.layers();
  AssignmentProblem problem;
  problem.layers = layers;
  problem.stages = strategy.pp;
  problem.microbatches = strategy.microbatches(model_.global_batch_size);
  std::vector<double> seconds(at(layers + 1), 0);
  std::vector<double> sends(at(layers + 1), 0);
  double computed = 0;
  for (int i = 1; i <= layers; ++i) {
    computed += least_compute(table, kinds_, i - 1);
    const double own = kinds_.size() == 1 ? table.compute_seconds(kinds_[0], 0, i) : computed;
    seconds[at(i)] = own + tensor_seconds(table, i);
    sends[at(i)] = send_seconds(table, i);
  }
  problem.seconds.assign(at(strategy.pp), seconds);
  problem.send_seconds.assign(at(strategy.pp - 1), sends);
  double memory = 0;
  for (const int kind : kinds_) {
    memory = std::max(memory, cluster_.kinds[at(kind)].memory_bytes);
  }
  const double usable = memory * cost::usable_share(model_, options_.constants) * (1 + 1e-12) -
                        options_.constants.context_bytes;
  const cost::HostPace pace = least_holding(strategy, table);
  std::vector<std::vector<int>> fits(at(strategy.pp));
  for (int k = 0; k < strategy.pp; ++k) {
    const cost::StageState state = cost::stage_state(
        strategy, cost::in_flight(strategy, k, problem.microbatches), problem.microbatches, pace);
    int first = 0;
    for (int last = 0; last <= layers; ++last) {
      while (first < last && table.memory(first, last, state).total() > usable) {
        ++first;
      }
      fits[at(k)].push_back(first);
    }
  }
  problem.first_that_fits = [&fits](int stage, int last) { return fits[at(stage)][at(last)]; };
  const Assignment best = assign_layers(problem);
  return best.boundaries.empty() ? kImpossible : best.seconds - deferred_seconds(strategy, table);
}

double LowerBound::spread_seconds(const cost::Strategy& strategy, const cost::LayerTable& table)
    const {
  double work = 0;
  // How many times slower a kind is than the fastest, for the layer where it is least so.
  std::vector<double> slower(kinds_.size(), kImpossible);
  for (int i = 0; i < table.layers(); ++i) {
    const double least = least_compute(table, kinds_, i);
    work += least;
    for (std::size_t k = 0; k < kinds_.size() && least > 0; ++k) {
      slower[k] = std::min(slower[k], table.compute_seconds(kinds_[k], i, i + 1) / least);
    }
  }
  double most_slow = 1;
  std::vector<std::pair<double, int>> speeds; // and devices of it
  for (std::size_t k = 0; k < kinds_.size(); ++k) {
    slower[k] = std::isinf(slower[k]) ? 1 : slower[k];
    most_slow = std::max(most_slow, slower[k]);
    int count = 0;
    for (const cost::Node& node : cluster_.nodes) {
      count += node.kind == kinds_[k] ? node.count : 0;
    }
    speeds.emplace_back(1 / slower[k], count);
  }
  std::sort(speeds.rbegin(), speeds.rend());
  double capacity = 0;
  int left = strategy.devices();
  for (const auto& [speed, count] : speeds) {
    capacity += speed * std::min(left, count);
    left -= std::min(left, count);
  }
  const double tensor = tensor_seconds(table, table.layers());
  const double pipelines = strategy.dp * strategy.tp;
  const int microbatches = strategy.microbatches(model_.global_batch_size);
  // Of all pipelines the one with the slowest devices has no more than its share of all speed.
  const double longest = (work + tensor / most_slow) * pipelines / capacity;
  double seconds = (microbatches - 1) * longest + work + tensor - deferred_seconds(strategy, table);
  double cores = 0;
  bool shared = true;
  for (const cost::Node& node : cluster_.nodes) {
    shared = shared && node.cores > 0;
    cores += node.cores;
  }
  if (shared) {
    seconds = std::max(seconds, microbatches * pipelines * work / cores);
  }
  double sent = kImpossible;
  for (int cut = 1; cut < table.layers(); ++cut) {
    sent = std::min(sent, send_seconds(table, cut));
  }
  return seconds + (strategy.pp > 1 ? 2 * (strategy.pp - 1) * sent : 0);
}

double LowerBound::exchange_seconds(const cost::Strategy& strategy, const cost::LayerTable& table)
    const {
  const cost::Constants& constants = options_.constants;
  std::vector<double> layers;
  for (int i = 0; i < table.layers(); ++i) {
    // Layers that share parameters may be together.
    layers.push_back(table.parameters(0, i + 1) - table.parameters(0, i));
  }
  const double largest = least_largest(layers, strategy.pp);
  double optimizer = kImpossible;
  for (const int kind : kinds_) {
    optimizer = std::min(
        optimizer,
        cost::optimizer_seconds(
            largest,
            table.optimizer_bytes(largest),
            cluster_.kinds[at(kind)],
            strategy,
            constants));
  }
  const double whole = strategy.tp > 1 ? table.whole_parameters(0, table.layers()) : 0;
  if (strategy.dp == 1 || strategy.overlap_gradients || strategy.shard_parameters || whole > 0 ||
      !cluster_.collectives.empty()) {
    return optimizer;
  }
  const cost::Traffic ring =
      cost::ring_traffic("all_reduce", strategy.dp, 1, largest * constants.gradient_wire_bytes);
  return optimizer + ring.wire_bytes / ideal_.next_bytes_per_s + ring.latency(ideal_.tensor_step);
}

double LowerBound::seconds(const cost::Strategy& strategy, const cost::LayerTable& table) const {
  const double assigned = assigned_seconds(strategy, table);
  if (assigned == kImpossible) {
    return kImpossible;
  }
  return (std::max(assigned, spread_seconds(strategy, table)) + exchange_seconds(strategy, table)) *
         kRounding;
}

} // namespace tessera::planner
