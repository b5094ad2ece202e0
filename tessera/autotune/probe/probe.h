#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/autotune/probe/pair.h"
#include "tessera/comm/world.h"
#include "tessera/cost/cluster.h"

namespace tessera::autotune {

/// How long to look. `quick` leaves out sizes and collectives that a plan for
/// pipelines and replicas does not ask for.
struct Effort {
  double seconds_a_point = 0.04; // in all rounds together
  int rounds = 3; // interleaved; the best counts, since load only adds time
  bool quick = false;
};

/// What one rank measured; speeds are those of a host's first rank.
struct RankMeasurement {
  std::string host;
  std::string processor;
  double free_bytes = 0; // this rank's share of its host's free memory
  cost::DeviceSpeed speed; // alone on its host
  int processors = 0; // that this rank may run on; 0: not known
  double alone_layers_per_s = 0; // of one rank while the others sleep
  // While all ranks compute, in every round; those of a round belong together.
  std::vector<double> busy_layers_per_s;
  double busy_bytes_per_s = 0; // memory traffic of every rank while all move
  double spread = 0; // of the point whose two best rounds are furthest apart
  int repeated = 0; // rounds beyond the planned ones
};

/// Measures computation: one rank of every host alone, then all at once, in
/// rounds. Collective over the world.
RankMeasurement
measure_speed(comm::World& world, comm::ProcessGroup& everyone, const Effort& effort);

/// Operators on this rank, forward and backward, at several sizes: fills the
/// speed, the spread and how much was repeated. Not collective.
void measure_operators(const Effort& effort, RankMeasurement& result);

/// One layer's forward and backward, the next one at every call: products,
/// functions and weights from memory mixed as in training, so that what ranks
/// take from each other's caches and memory shows when all run it.
std::function<void()> training_layers();

/// Collectives for groups of 2 ranks and more, all groups of one size at one
/// time, neighbours and, with several hosts, ranks far apart. The result is on
/// every rank. Collective over the world.
std::vector<cost::CollectiveTime> measure_collectives(
    comm::World& world,
    comm::ProcessGroup& everyone,
    const Effort& effort,
    cost::ProbeQuality& quality);

/// Bandwidth and latency of every pair of (a few) ranks, the best of several
/// rounds; rounds go on until the two best of every pair agree. Fills `quality`
/// and returns pairs on rank 0. Collective over the world.
std::vector<PairFacts> measure_links(
    comm::World& world,
    comm::ProcessGroup& everyone,
    const Effort& effort,
    cost::ProbeQuality& quality);

/// Rank measurements as a cluster: a node a host, hosts of like speed as one
/// kind of device.
/// Throws: ConfigError when a host's ranks do not follow each other.
cost::Cluster to_cluster(
    const std::vector<RankMeasurement>& ranks,
    const std::vector<PairFacts>& pairs,
    std::vector<cost::CollectiveTime> collectives,
    cost::ProbeQuality quality = {});

/// All of it; the cluster is on every rank. Collective over the world.
cost::Cluster measure_cluster(comm::World& world, const Effort& effort);

/// The same in a world of its own, for use before `init`.
cost::Cluster measure_cluster_now(const Effort& effort);

} // namespace tessera::autotune
