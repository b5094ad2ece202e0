#include <algorithm>
#include <cmath>
#include <map>
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

// Returns how many ranks of a host compute at full speed at one time: what all of them reach
// together in a round, in ranks that compute alone. Of rounds whose own speed alone is known the
// middle counts, otherwise the best. Sums are of one round, because in a round one rank gains what
// another one loses.
double full_speed_ranks(const std::vector<RankMeasurement>& ranks, const HostRange& host) {
  const RankMeasurement& first = ranks[static_cast<std::size_t>(host.first)];
  std::vector<double> rounds;
  for (int rank = host.first; rank < host.last; ++rank) {
    const auto& own = ranks[static_cast<std::size_t>(rank)].busy_layers_per_s;
    rounds.resize(std::max(rounds.size(), own.size()));
    for (std::size_t i = 0; i < own.size(); ++i) {
      rounds[i] += own[i];
    }
  }
  if (rounds.empty()) {
    return 0;
  }
  if (first.alone_by_round.size() != rounds.size()) {
    return *std::max_element(rounds.begin(), rounds.end()) / first.alone_layers_per_s;
  }
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    rounds[i] /= first.alone_by_round[i];
  }
  return median(rounds);
}

// Returns how many ranks of a host can compute at a time: one on each processor.
int most_at_once(const std::vector<RankMeasurement>& ranks, const HostRange& host) {
  std::set<std::int64_t> processors;
  for (int rank = host.first; rank < host.last; ++rank) {
    const auto& own = ranks[static_cast<std::size_t>(rank)].processors;
    processors.insert(own.begin(), own.end());
  }
  const int all = host.last - host.first;
  return processors.empty() ? all : std::min(all, static_cast<int>(processors.size()));
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

struct Measured {
  std::vector<double> bytes_per_s;
  std::vector<double> latency_seconds;

  bool empty() const {
    return bytes_per_s.empty();
  }
  void add(const Measured& more) {
    bytes_per_s.insert(bytes_per_s.end(), more.bytes_per_s.begin(), more.bytes_per_s.end());
    latency_seconds.insert(
        latency_seconds.end(), more.latency_seconds.begin(), more.latency_seconds.end());
  }
};

// What was measured between the hosts of the first number and the second, which may be equal.
using ByHosts = std::map<std::pair<std::size_t, std::size_t>, Measured>;

ByHosts by_hosts(const std::vector<HostRange>& hosts, const std::vector<PairFacts>& pairs) {
  const auto host_of = [&](int rank) {
    std::size_t host = 0;
    while (hosts[host].last <= rank) {
      ++host;
    }
    return host;
  };
  ByHosts result;
  for (const PairFacts& pair : pairs) {
    // Ranks of a host follow each other, so hosts ascend with ranks.
    const auto [first, second] = std::minmax(pair.first, pair.second);
    result[{host_of(first), host_of(second)}].add({{pair.bytes_per_s}, {pair.latency_us * 1e-6}});
  }
  return result;
}

// Sets bandwidths and latencies inside nodes to the medians of those between their ranks.
void add_insides(const ByHosts& measured, cost::Cluster& cluster) {
  Measured all;
  for (const auto& [hosts, found] : measured) {
    if (hosts.first == hosts.second) {
      all.add(found);
    }
  }
  for (std::size_t host = 0; host < cluster.nodes.size(); ++host) {
    cost::Node& node = cluster.nodes[host];
    const auto found = measured.find({host, host});
    const Measured& here = found == measured.end() ? all : found->second;
    if (node.count < 2 || here.empty()) {
      continue;
    }
    node.intra_bytes_per_s = median(here.bytes_per_s);
    node.latency_seconds = median(here.latency_seconds);
    cluster.quality.inferred += found == measured.end() ? 1 : 0;
  }
}

// Sets links between nodes to the medians of those between their ranks. Two nodes without measured
// pair take the median of the pairs that one of them is part of.
void add_links(const ByHosts& measured, cost::Cluster& cluster) {
  std::vector<Measured> from(cluster.nodes.size());
  for (const auto& [hosts, found] : measured) {
    if (hosts.first != hosts.second) {
      from[hosts.first].add(found);
      from[hosts.second].add(found);
      for (const std::size_t host : {hosts.first, hosts.second}) {
        // The network of a node carries at least what its best link does.
        double& network = cluster.nodes[host].inter_bytes_per_s;
        network = std::max(network, median(found.bytes_per_s));
      }
    }
  }
  for (std::size_t a = 0; a < cluster.nodes.size(); ++a) {
    for (std::size_t b = a + 1; b < cluster.nodes.size(); ++b) {
      const auto found = measured.find({a, b});
      Measured here = found == measured.end() ? from[a] : found->second;
      if (found == measured.end()) {
        here.add(from[b]);
      }
      if (here.empty()) {
        continue;
      }
      cluster.links.push_back(
          {.first = static_cast<int>(a),
           .second = static_cast<int>(b),
           .bytes_per_s = median(here.bytes_per_s),
           .latency_seconds = median(here.latency_seconds)});
      cluster.quality.inferred += found == measured.end() ? 1 : 0;
    }
  }
}

// Returns the processors that others than these ranks used, on the machine where that was most.
// Several hosts may be one machine, whose processors are counted together.
std::optional<double> foreign_processors(const std::vector<RankMeasurement>& ranks) {
  struct Use {
    double all = -1;
    double own = 0;
    double seconds = 0;
  };
  std::map<std::string, Use> machines;
  for (const RankMeasurement& rank : ranks) {
    Use& use = machines[rank.machine.empty() ? rank.host : rank.machine];
    use.all = std::max(use.all, rank.machine_seconds);
    use.own += rank.own_seconds;
    use.seconds = std::max(use.seconds, rank.elapsed_seconds);
  }
  std::optional<double> most;
  for (const auto& [machine, use] : machines) {
    if (use.all >= 0 && use.seconds > 0) {
      most = std::max(most.value_or(0), (use.all - use.own) / use.seconds);
    }
  }
  return most;
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
  quality.foreign_processors = foreign_processors(ranks);
  cluster.quality = quality;
  std::vector<const RankMeasurement*> kinds;
  for (const HostRange& host : hosts) {
    const RankMeasurement& first = ranks[static_cast<std::size_t>(host.first)];
    cost::Node node;
    node.kind = kind_of(first, kinds);
    node.count = host.last - host.first;
    node.host = host.name;
    // Noise must not make this more than the ranks, or than the processors that they use. Less than
    // one core would count the slowness of the measured rank twice.
    node.cores = std::clamp(
        full_speed_ranks(ranks, host), 1.0, static_cast<double>(most_at_once(ranks, host)));
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
    kind.update_bytes_per_s = kinds[k]->update_bytes_per_s;
    kind.host_bytes_per_s = kinds[k]->offload_bytes_per_s;
    kind.host_memory_bytes = kinds[k]->offload_room_bytes;
    for (std::size_t n = 0; n < hosts.size(); ++n) {
      if (cluster.nodes[n].kind != static_cast<int>(k)) {
        continue;
      }
      for (int rank = hosts[n].first; rank < hosts[n].last; ++rank) {
        const RankMeasurement& one = ranks[static_cast<std::size_t>(rank)];
        kind.memory_bytes = std::min(kind.memory_bytes, one.free_bytes);
        kind.memory_bytes_per_s = std::min(kind.memory_bytes_per_s, one.busy_bytes_per_s);
        kind.update_bytes_per_s = std::min(kind.update_bytes_per_s, one.update_bytes_per_s);
        kind.host_bytes_per_s = std::min(kind.host_bytes_per_s, one.offload_bytes_per_s);
        kind.host_memory_bytes = std::min(kind.host_memory_bytes, one.offload_room_bytes);
      }
    }
    cluster.kinds.push_back(std::move(kind));
  }
  const ByHosts measured = by_hosts(hosts, pairs);
  add_insides(measured, cluster);
  add_links(measured, cluster);
  cost::validate(cluster);
  return cluster;
}

} // namespace tessera::autotune
