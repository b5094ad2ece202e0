#pragma once

#include <vector>

#include "tessera/cost/cluster.h"
#include "tessera/cost/collective.h"
#include "tessera/cost/constants.h"
#include "tessera/cost/line_links.h"
#include "tessera/cost/strategy.h"

namespace tessera::cost {

class NodeLinks;
struct GroupPlace;
struct StagedStrategy;

/// The bandwidths of a stage where it is placed in the cluster, after
/// Constants::link_efficiency.
struct StageLinks {
  /// Of the ring of its slowest tensor-parallel group.
  double tensor_bytes_per_s = 0;
  /// Of one step of its tensor-parallel collectives.
  StepSeconds tensor_step = {};
  /// What its tensor-parallel groups span, each span once.
  std::vector<Span> tensor_nodes = {};
  /// Of the lines of its meshes (Distribution::kMesh); zero for other groups.
  LineLinks rows = {};
  LineLinks columns = {};
  /// From it to the next stage, of the slowest pair of ranks.
  double next_bytes_per_s = 0;
  /// Between it and stage 0, of the slowest pair of ranks; infinite for stage 0.
  double home_bytes_per_s = 0;
  /// Of a message to the next stage, and between it and stage 0, of the slowest pair.
  double next_latency_seconds = 0;
  double home_latency_seconds = 0;
};

/// The bandwidths of all pipeline ranks of a strategy. A link within a node belongs to one
/// pair of devices; the network of a node, and a link between two nodes, is shared by all
/// flows that use it at the same time, separately in each direction. A ring goes at the
/// slowest of all links between its nodes, whether or not they are neighbours in it: the
/// order of a ring is the communication library's, and the runtime's own exchange uses every pair.
struct PlacementLinks {
  /// Whether stages send to stages on other nodes.
  bool sends_between_nodes = false;
  std::vector<StageLinks> stages; // one a pipeline rank
  /// The device kinds of a pipeline's ranks, one entry for each distinct pipeline.
  std::vector<std::vector<int>> pipelines;
  /// For each pipeline rank the kinds of its devices, each once.
  std::vector<std::vector<int>> kinds;
};

/// Returns by how much an all-reduce of a group takes longer than its ring's bytes: the steps of
/// the ring, or, where that is less, those of trees and what their bytes take longer. So small ones
/// go by trees and large ones by rings, as communication libraries of accelerators choose; the
/// collectives of a measured cluster are the runtime's own, which are rings.
double all_reduce_delay(
    const GroupPlace& group,
    const NodeLinks& links,
    double bytes,
    const Cluster& cluster,
    const Constants& constants);

/// Returns the bandwidths of a strategy that has its device_of_rank.
PlacementLinks place(const Strategy& strategy, const Cluster& cluster, const Constants& constants);

/// Returns whether what later stages of a model that returns home (DescribedModel::returns_home)
/// send to each other passes through stage 0, which fast mode changes.
bool has_relays(const Strategy& strategy, bool returns_home);

/// Returns the seconds of one activation from `stage` to the next stage. If the model
/// returns home (DescribedModel::returns_home), it passes through stage 0, but in fast mode, and
/// that of the last stage returns to stage 0. 0 when nothing is sent.
double send_seconds(
    const PlacementLinks& links,
    const Strategy& strategy,
    int stage,
    double bytes,
    bool returns_home);

/// Returns the seconds until the gradients of every stage are summed over replicas, and
/// those of parameters that stages share over these stages. Traffic is added up for
/// every network connection, every link between two nodes and every device's links; all
/// work at the same time, so the slowest counts. A group whose all-reduce was measured takes
/// what was measured; if that was among other nodes, no less than its own traffic takes.
/// `parameters`, `whole` and `tied` count the parameters of each stage on one rank: all of them,
/// those that are averaged over tensor-parallel ranks too, and those that other stages hold as
/// well. Source: Li et al. 2022, equation (4), second term.
double gradient_sync_seconds(
    const Strategy& strategy,
    const Cluster& cluster,
    const std::vector<double>& parameters,
    const std::vector<double>& whole,
    const std::vector<double>& tied,
    const Constants& constants);

/// Returns the steps' time of the messages in which a stage's gradients are reduced: buckets, in
/// which a tree reduces and returns them, or, for a divided optimizer state, one gathering ring for
/// each of its `tensors`. What they weigh is gradient_sync_seconds'.
double message_seconds(
    const Strategy& strategy,
    const Cluster& cluster,
    int stage,
    double parameters,
    double tensors,
    const Constants& constants);

/// Returns the bandwidths of the tensor-parallel groups of all stages, whose rings share what they
/// meet on. The lines of a stage's meshes are placed as if no other stage had any.
std::vector<StageLinks>
place_groups(const StagedStrategy& strategy, const Cluster& cluster, const Constants& constants);

} // namespace tessera::cost
