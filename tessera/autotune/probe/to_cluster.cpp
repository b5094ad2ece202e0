#include <algorithm>
#include <cmath>
#include <set>

#include "tessera/autotune/probe/probe.h"
#include "tessera/autotune/probe/rounds.h"
#include "tessera/base/error.h"
#include "tessera/base/statistics.h"

namespace tessera::autotune {

namespace {

bool like(double a, double b) {
  constexpr double kNoise = 0.15;
  return std::abs(a - b) <= kNoise * std::max(a, b);
}

struct HostRange {
  std::string name;
  int first = 0;
  int last = 0;
};

std::vector<HostRange> hosts_in_order(const std::vector<RankMeasurement>& ranks) {
  std::vector<HostRange> hosts;
  std::set<std::string> seen;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    const std::string& host = ranks[static_cast<std::size_t>(rank)].host;
    if (!hosts.empty() && hosts.back().name == host) {
      ++hosts.back().last;
      continue;
    }
    if (!seen.insert(host).second) {
      throw ConfigError(
          str("probe: the ranks of host ",
              host,
              " do not follow each other (rank ",
              rank,
              " is on it again); start them host by host, mpirun --map-by "
              "slot"));
    }
    hosts.push_back({host, rank, rank + 1});
  }
  return hosts;
}

double product_seconds(const RankMeasurement& rank) {
  return rank.speed.products.at("f32").back().seconds;
}

// Returns the layers per second of all ranks of a host together, in the best round. The
// best of each rank would be too much, because in a round one rank gains what another
// one loses.
double busy_layers_per_s(const std::vector<RankMeasurement>& ranks, const HostRange& host) {
  std::vector<double> rounds;
  for (int rank = host.first; rank < host.last; ++rank) {
    const auto& own = ranks[static_cast<std::size_t>(rank)].busy_layers_per_s;
    rounds.resize(std::max(rounds.size(), own.size()));
    for (std::size_t i = 0; i < own.size(); ++i) {
      rounds[i] += own[i];
    }
  }
  return rounds.empty() ? 0 : *std::max_element(rounds.begin(), rounds.end());
}

// Returns the kind of device of a host: that of a similar host, or a new one.
int kind_of(const RankMeasurement& rank, std::vector<const RankMeasurement*>& kinds) {
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    const RankMeasurement& known = *kinds[k];
    if (known.processor == rank.processor &&
        known.speed.products.at("f32").size() == rank.speed.products.at("f32").size() &&
        like(product_seconds(known), product_seconds(rank)) &&
        like(known.free_bytes, rank.free_bytes)) {
      return static_cast<int>(k);
    }
  }
  kinds.push_back(&rank);
  return static_cast<int>(kinds.size()) - 1;
}

// Sets bandwidths and latencies of nodes to the medians of those between their ranks.
void add_pairs(
    const std::vector<HostRange>& hosts,
    const std::vector<PairFacts>& pairs,
    cost::Cluster& cluster) {
  const auto host_of = [&](int rank) {
    std::size_t host = 0;
    while (hosts[host].last <= rank) {
      ++host;
    }
    return host;
  };
  for (std::size_t a = 0; a < hosts.size(); ++a) {
    for (std::size_t b = a; b < hosts.size(); ++b) {
      std::vector<double> bandwidth;
      std::vector<double> latency;
      for (const PairFacts& pair : pairs) {
        if (std::minmax(host_of(pair.first), host_of(pair.second)) ==
            std::pair<const std::size_t&, const std::size_t&>(a, b)) {
          bandwidth.push_back(pair.bytes_per_s);
          latency.push_back(pair.latency_us * 1e-6);
        }
      }
      if (bandwidth.empty()) {
        continue;
      }
      if (a == b) {
        cluster.nodes[a].intra_bytes_per_s = median(bandwidth);
        cluster.nodes[a].latency_seconds = median(latency);
        continue;
      }
      cluster.links.push_back(
          {.first = static_cast<int>(a),
           .second = static_cast<int>(b),
           .bytes_per_s = median(bandwidth),
           .latency_seconds = median(latency)});
      for (const std::size_t node : {a, b}) {
        // The network of a node carries at least what its best link does.
        cluster.nodes[node].inter_bytes_per_s =
            std::max(cluster.nodes[node].inter_bytes_per_s, median(bandwidth));
      }
    }
  }
}

} // namespace

cost::Cluster to_cluster(
    const std::vector<RankMeasurement>& ranks,
    const std::vector<PairFacts>& pairs,
    std::vector<cost::CollectiveTime> collectives,
    cost::ProbeQuality quality) {
  const std::vector<HostRange> hosts = hosts_in_order(ranks);
  cost::Cluster cluster;
  cluster.measured = true;
  cluster.collectives = std::move(collectives);
  for (const RankMeasurement& rank : ranks) {
    quality.repeated += rank.repeated;
    quality.compute_spread = std::max(quality.compute_spread, rank.spread);
  }
  cluster.quality = quality;
  std::vector<const RankMeasurement*> kinds;
  for (const HostRange& host : hosts) {
    const RankMeasurement& first = ranks[static_cast<std::size_t>(host.first)];
    cost::Node node;
    node.kind = kind_of(first, kinds);
    node.count = host.last - host.first;
    node.host = host.name;
    const double busy = busy_layers_per_s(ranks, host);
    // Noise must not make this more than the ranks, or than the processors if ranks are
    // not bound to one each. Less than one core would count the slowness of the
    // measured rank twice.
    const bool free_to_move = first.processors >= 2;
    node.cores = std::clamp(
        busy / first.alone_layers_per_s,
        1.0,
        static_cast<double>(free_to_move ? std::min(node.count, first.processors) : node.count));
    cluster.nodes.push_back(node);
    cluster.name +=
        (cluster.name.empty() ? "" : " + ") + std::to_string(node.count) + " ranks on " + host.name;
  }
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    cost::DeviceKind kind;
    kind.name = kinds.size() == 1 ? "cpu" : "cpu-" + kinds[k]->host;
    kind.speed = kinds[k]->speed;
    kind.memory_bytes = kinds[k]->free_bytes;
    kind.memory_bytes_per_s = kinds[k]->busy_bytes_per_s;
    for (std::size_t n = 0; n < hosts.size(); ++n) {
      if (cluster.nodes[n].kind != static_cast<int>(k)) {
        continue;
      }
      for (int rank = hosts[n].first; rank < hosts[n].last; ++rank) {
        const RankMeasurement& one = ranks[static_cast<std::size_t>(rank)];
        kind.memory_bytes = std::min(kind.memory_bytes, one.free_bytes);
        kind.memory_bytes_per_s = std::min(kind.memory_bytes_per_s, one.busy_bytes_per_s);
      }
    }
    cluster.kinds.push_back(std::move(kind));
  }
  add_pairs(hosts, pairs, cluster);
  cost::validate(cluster);
  return cluster;
}

} // namespace tessera::autotune
