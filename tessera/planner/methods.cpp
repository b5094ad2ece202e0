#include "tessera/planner/methods.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "tessera/planner/best.h"
#include "tessera/planner/pricer.h"
#include "tessera/planner/random_index.h"

namespace tessera::planner {

namespace {

bool stopped(const SearchOptions& options) {
  return options.stop != nullptr && options.stop->load();
}

// Cuts where the parameters so far reach the even share. Every stage gets at least
// one layer.
std::vector<int> even_parameters(const cost::DescribedModel& model, int stages) {
  const int layers = static_cast<int>(model.layers.size());
  double total = 0;
  for (const cost::Layer& layer : model.layers) {
    total += static_cast<double>(layer.parameters);
  }
  std::vector<int> cuts = {0};
  double sum = 0;
  for (int i = 0; i < layers && static_cast<int>(cuts.size()) < stages; ++i) {
    const int left = stages - static_cast<int>(cuts.size());
    sum += static_cast<double>(model.layers[static_cast<std::size_t>(i)].parameters);
    const double share = total * static_cast<double>(cuts.size()) / stages;
    if ((sum >= share || layers - (i + 1) == left) && i + 1 > cuts.back()) {
      cuts.push_back(i + 1);
    }
  }
  cuts.push_back(layers);
  return cuts;
}

std::vector<int> file_order(const cost::Cluster& cluster) {
  std::vector<int> order(cluster.nodes.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

} // namespace

void amp_into(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options,
    const std::function<bool(const Point&)>& asked,
    Best& best,
    SearchResult& result) {
  const Pricer pricer(model, cluster, options);
  std::vector<Point> points = points_of(model, cluster, options);
  std::erase_if(points, [&](const Point& point) { return !asked(point); });
  const std::vector<std::vector<int>> orders = node_orders(model, cluster, options);
  SearchProgress progress{
      .done = 0,
      .total = static_cast<int>(points.size()),
      .best_seconds = std::numeric_limits<double>::infinity()};
  // The most promising come first, so that the others are passed over.
  std::vector<std::pair<double, std::size_t>> bounds; // and the points' indices
  for (std::size_t i = 0; i < points.size() && !stopped(options); ++i) {
    bounds.emplace_back(pricer.lower_bound(points[i], pricer.table(points[i])), i);
    result.lower_bound = std::min(result.lower_bound, bounds.back().first);
  }
  std::sort(bounds.begin(), bounds.end());
  for (const auto& [bound, index] : bounds) {
    if (stopped(options)) {
      break;
    }
    if (bound < best.worst()) {
      const Point& point = points[index];
      const cost::LayerTable table = pricer.table(point);
      // Only the best placement of a point is kept, so that the best strategies are
      // not one point under several placements.
      std::optional<Candidate> of_point;
      for (const Layout& layout : layouts_of(point, orders)) {
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
    ++progress.done;
    progress.best_seconds = best.best();
    if (options.progress) {
      options.progress(progress);
    }
  }
  result.interrupted = result.interrupted || progress.done < progress.total;
}

SearchResult
amp(const cost::DescribedModel& model, const cost::Cluster& cluster, const SearchOptions& options) {
  SearchResult result;
  result.lower_bound = std::numeric_limits<double>::infinity();
  Best best(options.keep);
  amp_into(
      model, cluster, options, [](const Point&) { return true; }, best, result);
  result.best = std::move(best.candidates());
  return result;
}

namespace {

// What has as many layers or parameters in each stage of this point, and fits.
std::vector<Candidate> even_candidates(
    const Pricer& pricer,
    const Point& point,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster) {
  const int layers = static_cast<int>(model.layers.size());
  std::vector<Candidate> result;
  for (const auto& cuts : {even_layers(layers, point.pp), even_parameters(model, point.pp)}) {
    cost::Strategy strategy = pricer.strategy(point);
    strategy.boundaries = cuts;
    strategy.device_of_rank =
        cost::lay_out(strategy, "PDT", devices_in_order(cluster, file_order(cluster)));
    Candidate candidate = pricer.priced(std::move(strategy));
    candidate.node_order = file_order(cluster);
    if (candidate.cost.fits()) {
      result.push_back(std::move(candidate));
    }
    if (point.pp == 1) {
      break; // one stage: both cuts are the same
    }
  }
  return result;
}

void append(std::vector<Candidate>& to, std::vector<Candidate> more) {
  std::move(more.begin(), more.end(), std::back_inserter(to));
}

} // namespace

std::vector<Candidate> megatron_heuristics(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options) {
  const Pricer pricer(model, cluster, options);
  int smallest_node = cluster.nodes.front().count;
  std::set<int> sizes;
  for (const cost::Node& node : cluster.nodes) {
    smallest_node = std::min(smallest_node, node.count);
  }
  std::vector<Point> points = points_of(model, cluster, options);
  // Megatron-LM divides layers in one way only, which for a traced model is "speed".
  std::erase_if(points, [&](const Point& point) {
    return point.tp > smallest_node || (point.distribution != cost::Distribution::kAsMeasured &&
                                        point.distribution != cost::Distribution::kSpeed);
  });
  for (const Point& point : points) {
    sizes.insert(point.microbatch_size);
  }
  std::stable_sort(points.begin(), points.end(), [](const Point& a, const Point& b) {
    return a.tp * a.pp < b.tp * b.pp;
  });
  std::vector<Candidate> result;
  for (const int size : sizes) {
    // Take the least tp x pp that fits with even layers or even parameters; all
    // points with that product are tried.
    int product = 0;
    for (const Point& point : points) {
      if (stopped(options)) {
        return result;
      }
      if (point.microbatch_size != size || (product > 0 && point.tp * point.pp > product)) {
        continue;
      }
      std::vector<Candidate> found = even_candidates(pricer, point, model, cluster);
      if (!found.empty()) {
        product = point.tp * point.pp;
        append(result, std::move(found));
      }
    }
  }
  return result;
}

std::vector<Candidate> uniform_strategies(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options) {
  const Pricer pricer(model, cluster, options);
  std::vector<Candidate> result;
  for (const Point& point : points_of(model, cluster, options)) {
    if (stopped(options)) {
      break;
    }
    append(result, even_candidates(pricer, point, model, cluster));
  }
  return result;
}

std::vector<Candidate> random_strategies(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options) {
  const Pricer pricer(model, cluster, options);
  const std::vector<Point> points = points_of(model, cluster, options);
  const int layers = static_cast<int>(model.layers.size());
  std::mt19937_64 random(options.seed);
  std::vector<Candidate> result;
  for (int i = 0; !points.empty() && i < options.samples; ++i) {
    if (stopped(options)) {
      break;
    }
    const Point& point = points[index_below(random, points.size())];
    cost::Strategy strategy = pricer.strategy(point);
    std::set<int> cuts = {0, layers};
    while (static_cast<int>(cuts.size()) < point.pp + 1) {
      cuts.insert(1 + static_cast<int>(index_below(random, static_cast<std::size_t>(layers) - 1)));
    }
    strategy.boundaries.assign(cuts.begin(), cuts.end());
    std::vector<int> devices = devices_in_order(cluster, file_order(cluster));
    for (std::size_t d = devices.size(); d > 1; --d) {
      std::swap(devices[d - 1], devices[index_below(random, d)]);
    }
    strategy.placement = "";
    strategy.device_of_rank = std::move(devices);
    result.push_back(pricer.priced(std::move(strategy)));
  }
  return result;
}

} // namespace tessera::planner
