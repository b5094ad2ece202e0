#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/base/index.h"
#include "tessera/cost/collective.h"
#include "tessera/cost/group_place.h"
#include "tessera/cost/links.h"
#include "tessera/cost/staged_cost.h"

namespace tessera::cost {

namespace {

// This adds up the all-reduces of gradients on everything that carries them.
class GradientTraffic {
 public:
  GradientTraffic(const Strategy& strategy, const Cluster& cluster, const Constants& constants)
      : cluster_(cluster),
        constants_(constants),
        places_(strategy, cluster),
        network_(cluster.nodes.size(), 0),
        link_(at(places_.links().size()), 0),
        inside_(at(strategy.devices()), 0) {}

  const Places& places() const {
    return places_;
  }

  void add(const std::vector<int>& ranks, double bytes) {
    const int n = static_cast<int>(ranks.size());
    const GroupPlace place = places_.of(ranks);
    const KnownCollective known =
        cluster_.collective("all_reduce", n, cluster_.span_of(place.nodes), bytes);
    measured_ = std::max(measured_, known.seconds);
    if (known.seconds > 0 && !known.elsewhere) {
      return;
    }
    const Traffic ring = ring_traffic("all_reduce", n, static_cast<int>(place.nodes.size()), bytes);
    for (std::size_t i = 0; i < place.nodes.size() && place.nodes.size() > 1; ++i) {
      const int node = place.nodes[i];
      network_[at(node)] += ring.wire_bytes;
      stream_ = std::max(
          stream_,
          ring.wire_bytes / collective_bytes_per_s(cluster_.nodes[at(node)], place.ranks[i]));
    }
    for (const int link : place.links) {
      link_[at(link)] += ring.wire_bytes;
    }
    for (const int rank : ranks) {
      const int node = places_.node(rank);
      if (std::binary_search(place.crowded.begin(), place.crowded.end(), node)) {
        inside_[at(rank)] += ring.wire_bytes / cluster_.nodes[at(node)].intra_bytes_per_s;
      }
    }
    latency_ =
        std::max(latency_, all_reduce_delay(place, places_.links(), bytes, cluster_, constants_));
  }

  double seconds() const {
    double busiest = stream_;
    for (std::size_t n = 0; n < network_.size(); ++n) {
      if (network_[n] > 0) {
        busiest = std::max(busiest, network_[n] / cluster_.nodes[n].inter_bytes_per_s);
      }
    }
    for (int link = 0; link < places_.links().size(); ++link) {
      busiest = std::max(busiest, link_[at(link)] / places_.links().bytes_per_s(link));
    }
    for (const double busy : inside_) {
      busiest = std::max(busiest, busy);
    }
    // Measured times count once: the groups of all stages ran together when they were measured.
    return std::max(measured_, busiest > 0 ? busiest / constants_.link_efficiency + latency_ : 0);
  }

 private:
  const Cluster& cluster_;
  const Constants& constants_;
  Places places_;
  std::vector<double> network_; // bytes out of each node
  std::vector<double> link_; // bytes on each link between nodes, each direction
  std::vector<double> inside_; // seconds of each rank's link inside its node
  double stream_ = 0; // seconds of the slowest ring by itself
  double latency_ = 0;
  double measured_ = 0;
};

} // namespace

double gradient_sync_seconds(
    const Strategy& strategy,
    const Cluster& cluster,
    const std::vector<double>& parameters,
    const std::vector<double>& whole,
    const std::vector<double>& tied,
    const Constants& constants) {
  GradientTraffic traffic(strategy, cluster, constants);
  const Places& places = traffic.places();
  const double wire = constants.gradient_wire_bytes;
  for (int k = 0; k < strategy.pp; ++k) {
    if (strategy.tp > 1 && whole[at(k)] > 0) {
      traffic.add(places.stage(k), whole[at(k)] * wire);
    }
    const double divided = parameters[at(k)] - (strategy.tp > 1 ? whole[at(k)] : 0);
    for (int t = 0; strategy.dp > 1 && divided > 0 && t < strategy.tp; ++t) {
      traffic.add(places.replicas(k, t), divided * wire);
    }
  }
  // Stages that hold the same parameters form groups with one rank of each stage.
  std::vector<int> sharing;
  double shared = 0;
  for (int k = 0; k < strategy.pp; ++k) {
    if (tied[at(k)] > 0) {
      sharing.push_back(k);
      shared = std::max(shared, tied[at(k)]);
    }
  }
  for (int d = 0; sharing.size() > 1 && d < strategy.dp; ++d) {
    for (int t = 0; t < strategy.tp; ++t) {
      traffic.add(places.across(sharing, d, t), shared * wire);
    }
  }
  return traffic.seconds();
}

double gradient_sync_seconds(
    const StagedStrategy& strategy,
    const Cluster& cluster,
    const std::vector<double>& parameters,
    const std::vector<double>& whole,
    const std::vector<double>& tied,
    const Constants& constants) {
  // Ranks are the devices themselves.
  Strategy devices;
  devices.dp = cluster.device_count();
  devices.device_of_rank.resize(at(devices.dp));
  std::iota(devices.device_of_rank.begin(), devices.device_of_rank.end(), 0);
  GradientTraffic traffic(devices, cluster, constants);
  const double wire = constants.gradient_wire_bytes;
  std::vector<const OwnStage*> sharing;
  std::size_t widest = 0;
  double shared = 0;
  for (std::size_t k = 0; k < strategy.stages.size(); ++k) {
    const OwnStage& stage = strategy.stages[k];
    const int degree = stage.way.degree;
    const double averaged = degree > 1 ? whole[k] : 0;
    if (averaged > 0) {
      traffic.add(stage.devices, averaged * wire);
    }
    const double divided = parameters[k] - averaged;
    for (int t = 0; stage.replicas() > 1 && divided > 0 && t < degree; ++t) {
      std::vector<int> ranks;
      for (int d = 0; d < stage.replicas(); ++d) {
        ranks.push_back(stage.devices[at(d * degree + t)]);
      }
      traffic.add(ranks, divided * wire);
    }
    if (tied[k] > 0) {
      sharing.push_back(&stage);
      shared = std::max(shared, tied[k]);
      widest = std::max(widest, stage.devices.size());
    }
  }
  const bool alike = std::all_of(sharing.begin(), sharing.end(), [&](const OwnStage* stage) {
    return stage->devices.size() == widest && stage->way == sharing.front()->way;
  });
  if (sharing.size() > 1) {
    // Groups with one rank of each stage, or all ranks where these do not correspond.
    for (std::size_t i = 0; i < (alike ? widest : 1); ++i) {
      std::vector<int> ranks;
      for (const OwnStage* stage : sharing) {
        const auto first = stage->devices.begin() + (alike ? static_cast<std::ptrdiff_t>(i) : 0);
        ranks.insert(ranks.end(), first, alike ? first + 1 : stage->devices.end());
      }
      traffic.add(ranks, shared * wire);
    }
  }
  return traffic.seconds();
}

double message_seconds(
    const Strategy& strategy,
    const Cluster& cluster,
    int stage,
    double parameters,
    double tensors,
    const Constants& constants) {
  if (strategy.dp == 1) {
    return 0;
  }
  const Places places(strategy, cluster);
  const double nodes = static_cast<double>(places.of(places.replicas(stage, 0)).nodes.size());
  if (strategy.shard_optimizer_state) {
    return tensors * ((nodes - 1) * constants.link_latency_seconds +
                      (strategy.dp - nodes) * constants.device_latency_seconds);
  }
  const double buckets =
      std::ceil(parameters * constants.gradient_wire_bytes / constants.gradient_bucket_bytes);
  // Two trees carry a half each, up and down.
  return buckets * 4 * std::log2(nodes) * constants.link_latency_seconds;
}

} // namespace tessera::cost
