#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/autotune/probe/pair.h"
#include "tessera/comm/world.h"
#include "tessera/cost/cluster.h"

namespace tessera::autotune {

/// How much to measure. `quick` leaves out sizes and collectives that a plan for
/// pipelines and replicas does not need.
struct Effort {
  double seconds_a_point = 0.04; // in all rounds together
  int rounds = 3; // 2 or more, interleaved; the best counts, since other load only adds time
  bool quick = false;
};

/// What one rank measured. Only the first rank of a host measures `speed` and
/// `alone_layers_per_s`.
struct RankMeasurement {
  std::string host;
  std::string processor;
  double free_bytes = 0; // this rank's share of its host's free memory
  cost::DeviceSpeed speed; // while the host's other ranks sleep
  std::vector<std::int64_t> processors; // numbers of those on which it may run; empty: not known
  double alone_layers_per_s = 0; // while the host's other ranks sleep
  // While all ranks compute; entry i of every rank is from the same round.
  std::vector<double> busy_layers_per_s;
  // While the host's other ranks sleep, right before the same round: the speed of a virtual machine
  // drifts. Empty: only alone_layers_per_s is known.
  std::vector<double> alone_by_round;
  double busy_bytes_per_s = 0; // memory traffic of one rank while all ranks move data
  double update_bytes_per_s = 0; // DeviceKind::update_bytes_per_s, while all ranks update
  /// Offloading of activations while all ranks offload: bytes of a second, the slower way of the
  /// two, and this rank's share of the room; 0: it would save no memory here, or is not possible.
  double offload_bytes_per_s = 0;
  double offload_room_bytes = 0;
  double spread = 0; // Rounds::spread of the point where it is largest
  int repeated = 0; // rounds beyond Effort::rounds
  // While the probe ran: for how long it did, and the processor seconds of this process and of all
  // programs of its machine; -1: the system does not tell.
  std::string machine; // machine_id()
  double elapsed_seconds = 0;
  double own_seconds = 0;
  double machine_seconds = -1;
};

/// Measures computation: first one rank of every host alone, then all ranks at the same
/// time, in rounds. Collective over the world. Threads: the main thread.
RankMeasurement
measure_speed(comm::World& world, comm::ProcessGroup& everyone, const Effort& effort);

/// Measures what offloading of activations reaches, in the folder for temporary files. Collective
/// over the world. Threads: the main thread.
void measure_offloading(
    comm::World& world,
    comm::ProcessGroup& everyone,
    const Effort& effort,
    RankMeasurement& result);

/// Measures operators on this rank, forward and backward, at several sizes. Fills
/// `speed`, `spread` and `repeated`. Not collective.
void measure_operators(const Effort& effort, RankMeasurement& result);

/// Returns a function that runs the forward of one layer for so many rows, and with `backward` its
/// backward, each call of the next of several layers. It mixes products, functions and weights from
/// memory as training does, so that contention for caches and memory shows when all ranks run it.
std::function<void()> training_layers(bool backward = true, std::int64_t rows = 128);

/// Measures collectives of groups of 2 ranks and more, all groups of one size at the
/// same time: groups of neighbours and, on several hosts, of ranks far apart. Groups on other
/// nodes are kept apart (CollectiveTime::among); of those on the same nodes the slowest counts.
/// Adds to `waiting` what waiting for each other costs the ranks of neighbouring groups of each
/// size. The result is on every rank. Collective over the world. Threads: the main thread.
std::vector<cost::CollectiveTime> measure_collectives(
    comm::World& world,
    comm::ProcessGroup& everyone,
    const Effort& effort,
    cost::ProbeQuality& quality,
    std::vector<cost::GroupWaiting>& waiting);

/// Measures bandwidth and latency of the pairs of pairs_to_measure(): the best of several
/// rounds, until the two best of every pair agree. Fills `quality` and returns the
/// pairs on rank 0. Collective over the world. Threads: the main thread.
std::vector<PairFacts> measure_links(
    comm::World& world,
    comm::ProcessGroup& everyone,
    const Effort& effort,
    cost::ProbeQuality& quality);

/// Makes a cluster of the measurements: each host is a node, and hosts of similar speed
/// have one kind of device. A host without measured pair inside it, or two hosts without one
/// between them, take the median of those that are like them; `quality` counts these.
/// Not collective. Throws: ConfigError when the ranks of a host do not follow each other, and as
/// cost::validate.
cost::Cluster to_cluster(
    const std::vector<RankMeasurement>& ranks,
    const std::vector<PairFacts>& pairs,
    std::vector<cost::CollectiveTime> collectives,
    cost::ProbeQuality quality = {});

/// Measures everything; the cluster is on every rank. Collective over the world.
/// Throws: ConfigError as to_cluster, the same on every rank.
cost::Cluster measure_cluster(comm::World& world, const Effort& effort);

/// Does the same in a world of its own, for use before `init`. Any other error than
/// ConfigError ends all processes, because the other ranks wait for this one.
cost::Cluster measure_cluster_now(const Effort& effort);

} // namespace tessera::autotune
