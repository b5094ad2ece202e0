#include "tessera/planner/space.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/index.h"
#include "tessera/cost/data_sheets.h"
#include "tessera/planner/runtime_abilities.h"

namespace tessera::planner {

namespace {

double whole_model_seconds(const cost::DescribedModel& model, const cost::DeviceKind& kind) {
  const std::string& device = kind.name;
  double seconds = 0;
  if (model.sized() != nullptr) {
    const double flops_per_s = cost::product_flops(kind, model.precision);
    for (const cost::Layer& layer : model.layers) {
      seconds += static_cast<double>(layer.parameters) / flops_per_s;
    }
    return seconds;
  }
  if (const cost::TracedModel* traced = model.traced()) {
    for (const cost::TracedLayer& layer : traced->whole.layers) {
      seconds += layer.microbatch_seconds.at(device).begin()->second.forward;
    }
    return seconds;
  }
  for (const cost::MeasuredLayer& layer : model.measured().layers) {
    seconds += layer.forward_seconds_per_sample.at(device).at(1);
  }
  return seconds;
}

// Returns the ways to divide a model among `tp` ranks. A measured model has one: that
// in which its layers were measured.
std::vector<cost::TensorWay> ways_of(const cost::DescribedModel& model, int tp) {
  if (tp == 1 || model.traced() == nullptr) {
    return {{tp}};
  }
  std::vector<cost::TensorWay> ways;
  for (const cost::DividedModel& one : model.traced()->divided) {
    if (one.way.degree == tp) {
      ways.push_back(one.way);
    }
  }
  return ways;
}

// Returns whether microbatches of this size can be divided in this way.
bool divides(
    const cost::DescribedModel& model,
    const cost::TensorWay& way,
    int microbatch_size,
    bool runnable_only) {
  if (way.degree == 1) {
    return true;
  }
  if (const cost::DividedModel* divided = model.divided_in(way)) {
    return divided->part.tail_collectives.count(microbatch_size) != 0;
  }
  return !runnable_only || microbatch_size % way.degree == 0;
}

} // namespace

std::vector<Point> points_of(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options) {
  const int devices = cluster.device_count();
  const int layers = static_cast<int>(model.layers.size());
  std::vector<std::vector<int>> known; // degrees on each kind of device
  for (const cost::DeviceKind& kind : cluster.kinds) {
    known.push_back(model.measured_degrees(kind.name));
  }
  std::vector<int> degrees;
  for (int tp = 1; tp <= devices; ++tp) {
    const bool measured = std::all_of(known.begin(), known.end(), [tp](const auto& of_kind) {
      return std::find(of_kind.begin(), of_kind.end(), tp) != of_kind.end();
    });
    const bool asked = options.tensor_degree == 0 || options.tensor_degree == tp;
    if (devices % tp == 0 && measured && asked &&
        (tp == 1 || !options.runnable_only || runtime_abilities().tensor_parallelism)) {
      degrees.push_back(tp);
    }
  }
  std::vector<Point> points;
  for (const int tp : degrees) {
    const std::vector<cost::TensorWay> ways = ways_of(model, tp);
    for (int pp = 1; pp <= std::min(layers, devices / tp); ++pp) {
      if (devices / tp % pp != 0) {
        continue;
      }
      const int dp = devices / tp / pp;
      for (int mbs = 1; mbs <= model.global_batch_size / dp; ++mbs) {
        if (model.global_batch_size % dp != 0 || model.global_batch_size / dp % mbs != 0) {
          continue;
        }
        for (const cost::TensorWay& way : ways) {
          if (divides(model, way, mbs, options.runnable_only)) {
            points.push_back({pp, dp, tp, mbs, way.distribution, way.same_samples});
          }
        }
      }
    }
  }
  return points;
}

namespace {

// Returns what all devices of a node send to others together, as one collective.
double network_bytes_per_s(const cost::Node& node) {
  return cost::collective_bytes_per_s(node, node.count);
}

// Returns whether some pairs of nodes reach each other faster than others.
bool links_differ(const cost::Cluster& cluster) {
  const double first = network_bytes_per_s(cluster.nodes.front());
  return !cluster.links.empty() || !cluster.groups.empty() ||
         std::any_of(cluster.nodes.begin(), cluster.nodes.end(), [&](const cost::Node& node) {
           return network_bytes_per_s(node) != first;
         });
}

// Returns bytes per second between any two nodes; links count in one direction as in the other.
std::vector<std::vector<double>> between_nodes(const cost::Cluster& cluster) {
  const std::size_t count = cluster.nodes.size();
  std::vector<std::vector<double>> result(count, std::vector<double>(count, 0));
  for (std::size_t a = 0; a < count; ++a) {
    for (std::size_t b = 0; b < count; ++b) {
      result[a][b] =
          std::min(network_bytes_per_s(cluster.nodes[a]), network_bytes_per_s(cluster.nodes[b]));
    }
  }
  for (const cost::NodeLink& link : cluster.links) {
    for (const auto& [a, b] : {std::pair(link.first, link.second), {link.second, link.first}}) {
      result[at(a)][at(b)] = std::min(result[at(a)][at(b)], link.bytes_per_s);
    }
  }
  for (const cost::NodeGroup& group : cluster.groups) {
    for (std::size_t a = 0; a < count; ++a) {
      const auto has = [&](std::size_t node) {
        return std::binary_search(group.nodes.begin(), group.nodes.end(), static_cast<int>(node));
      };
      for (std::size_t b = 0; b < count; ++b) {
        result[a][b] = has(a) != has(b) ? std::min(result[a][b], group.bytes_per_s) : result[a][b];
      }
    }
  }
  return result;
}

// Returns the order in which, within runs of one kind, a node is followed by the one that it
// reaches fastest of those left; of equals the first.
std::vector<int> chained(
    std::vector<int> order,
    const cost::Cluster& cluster,
    const std::vector<std::vector<double>>& between) {
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    const auto here = at(order[i]);
    std::size_t next = i + 1;
    for (std::size_t j = i + 2; j < order.size(); ++j) {
      const bool alike = cluster.nodes[at(order[j])].kind == cluster.nodes[at(order[i + 1])].kind;
      if (alike && between[here][at(order[j])] > between[here][at(order[next])]) {
        next = j;
      }
    }
    std::rotate(
        order.begin() + static_cast<std::ptrdiff_t>(i + 1),
        order.begin() + static_cast<std::ptrdiff_t>(next),
        order.begin() + static_cast<std::ptrdiff_t>(next + 1));
  }
  return order;
}

// Returns for each node the first that it cannot be told from.
std::vector<int> classes_of(const cost::Cluster& cluster) {
  const bool by_pairs = !cluster.links.empty() || !cluster.groups.empty();
  std::vector<int> classes;
  for (std::size_t n = 0; n < cluster.nodes.size(); ++n) {
    std::size_t first = n;
    for (std::size_t m = 0; !by_pairs && first == n && m < n; ++m) {
      first = look_of(cluster.nodes[m]) == look_of(cluster.nodes[n]) ? m : n;
    }
    classes.push_back(static_cast<int>(first));
  }
  return classes;
}

// Returns every order of the nodes that differs from the others by more than which of several
// alike nodes stands where; none where there are more than `most`.
std::vector<std::vector<int>> all_orders(const cost::Cluster& cluster, std::size_t most) {
  const std::vector<int> classes = classes_of(cluster);
  std::vector<int> labels = classes;
  std::sort(labels.begin(), labels.end());
  std::vector<std::vector<int>> orders;
  do {
    if (orders.size() == most) {
      return {};
    }
    std::vector<int> order;
    std::vector<bool> taken(classes.size(), false);
    for (const int label : labels) {
      for (std::size_t n = 0; n < classes.size(); ++n) {
        if (classes[n] == label && !taken[n]) {
          taken[n] = true;
          order.push_back(static_cast<int>(n));
          break;
        }
      }
    }
    orders.push_back(std::move(order));
  } while (std::next_permutation(labels.begin(), labels.end()));
  return orders;
}

} // namespace

NodeLook look_of(const cost::Node& node) {
  return {
      node.kind,
      node.count,
      node.intra_bytes_per_s,
      node.inter_bytes_per_s,
      node.stream_bytes_per_s,
      node.network_cards,
      node.cores,
      node.latency_seconds,
      node.network_latency_seconds};
}

std::vector<std::vector<int>> node_orders(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options) {
  // Chains of more nodes would take longer than the search itself.
  constexpr std::size_t kMostChained = 512;
  std::vector<std::vector<int>> orders(1);
  orders[0].resize(cluster.nodes.size());
  std::iota(orders[0].begin(), orders[0].end(), 0);
  if (options.keep_node_order) {
    return orders;
  }
  std::vector<double> speed;
  for (const cost::DeviceKind& kind : cluster.kinds) {
    speed.push_back(whole_model_seconds(model, kind));
  }
  const auto slower = [&](int a, int b) {
    return speed[at(cluster.nodes[at(a)].kind)] < speed[at(cluster.nodes[at(b)].kind)];
  };
  const auto add = [&orders](std::vector<int> order) {
    if (std::find(orders.begin(), orders.end(), order) == orders.end()) {
      orders.push_back(std::move(order));
    }
  };
  std::vector<int> grouped = orders[0];
  std::stable_sort(grouped.begin(), grouped.end(), slower);
  std::vector<int> reversed = orders[0];
  std::stable_sort(reversed.begin(), reversed.end(), [&](int a, int b) { return slower(b, a); });
  add(grouped);
  add(reversed);
  // Of so few orders each is tried: which node stands at an end, and next to which, decides what
  // crosses its network.
  if (cluster.nodes.size() > 2 && options.most_orders > 0) {
    for (std::vector<int>& order : all_orders(cluster, at(options.most_orders))) {
      add(std::move(order));
    }
  }
  if (cluster.nodes.size() > 2 && cluster.nodes.size() <= kMostChained && links_differ(cluster)) {
    const auto between = between_nodes(cluster);
    for (const auto& order : std::vector<std::vector<int>>(orders)) {
      add(chained(order, cluster, between));
    }
  }
  return orders;
}

std::vector<Layout> layouts_of(const Point& point, const std::vector<std::vector<int>>& orders) {
  std::vector<Layout> layouts;
  for (const auto& order : orders) {
    layouts.push_back({order, "PDT"});
    if (point.pp > 1 && point.dp > 1) {
      layouts.push_back({order, "DPT"});
    }
  }
  return layouts;
}

std::vector<Layout> layouts_of(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const Point& point,
    const SearchOptions& options) {
  return layouts_of(point, node_orders(model, cluster, options));
}

bool ties_apart(const cost::Strategy& strategy, const cost::DescribedModel& model) {
  const auto rank_of = [&strategy](int layer) {
    const auto behind =
        std::upper_bound(strategy.boundaries.begin(), strategy.boundaries.end(), layer);
    return (behind - strategy.boundaries.begin() - 1) % strategy.pp;
  };
  const std::vector<int> shared = model.shared_with();
  for (std::size_t i = 0; i < shared.size(); ++i) {
    if (shared[i] >= 0 && rank_of(static_cast<int>(i)) != rank_of(shared[i])) {
      return true;
    }
  }
  return false;
}

std::vector<int> devices_in_order(
    const cost::Cluster& cluster,
    const std::vector<int>& node_order) {
  std::vector<int> first;
  int count = 0;
  for (const cost::Node& node : cluster.nodes) {
    first.push_back(count);
    count += node.count;
  }
  std::vector<int> devices;
  for (const int n : node_order) {
    for (int i = 0; i < cluster.nodes[at(n)].count; ++i) {
      devices.push_back(first[at(n)] + i);
    }
  }
  return devices;
}

void check_node_order(
    const std::vector<int>& order,
    const cost::Cluster& cluster,
    const std::string& name) {
  std::vector<int> all = order;
  std::sort(all.begin(), all.end());
  bool each_once = all.size() == cluster.nodes.size();
  for (std::size_t i = 0; each_once && i < all.size(); ++i) {
    each_once = all[i] == static_cast<int>(i);
  }
  if (!each_once) {
    throw ConfigError(
        str(name,
            ": write each of the cluster file's nodes once, from 0 to ",
            cluster.nodes.size() - 1,
            " (of a strategy on some of them, leave the others out by --without)"));
  }
}

std::vector<int> even_layers(int layers, int stages) {
  std::vector<int> boundaries;
  for (int k = 0; k <= stages; ++k) {
    boundaries.push_back(layers * k / stages);
  }
  return boundaries;
}

std::vector<double> ranks_a_core(const cost::Strategy& strategy, const cost::Cluster& cluster) {
  const std::vector<int> node_of_device = cluster.node_of_device();
  std::vector<double> result(cluster.nodes.size(), 0);
  for (const int device : strategy.device_of_rank) {
    result[at(node_of_device[at(device)])] += 1;
  }
  for (std::size_t n = 0; n < result.size(); ++n) {
    const double cores = cluster.nodes[n].cores;
    result[n] = cores > 0 ? std::max(1.0, result[n] / cores) : 1;
  }
  return result;
}

} // namespace tessera::planner
