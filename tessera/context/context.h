#pragma once

#include <memory>

#include "tessera/comm/world.h"
#include "tessera/config/config.h"
#include "tessera/context/data_rows.h"
#include "tessera/random/stream.h"
#include "tessera/timeline/timeline.h"
#include "tessera/topology/rank_layout.h"
#include "tessera/transport/transport.h"

namespace tessera {

using config::Config;
using topology::Group;

namespace offload {
class Offloader;
}
namespace sharding {
class PartService;
}

/// What the processes of a run share. `init` makes one; everything that communicates is given it.
/// Threads: step thread only, unless a member says otherwise.
struct Context : std::enable_shared_from_this<Context> {
  Config config;
  comm::WorldPtr world;
  std::unique_ptr<topology::RankLayout> layout;
  std::unique_ptr<comm::MeshGroups> groups;
  DataShares shares;
  /// A second data-parallel group: agreements at the end of a step must not queue behind gradient
  /// buckets.
  comm::ProcessGroupPtr control;
  /// The same for the RDP_GROUP; nullptr without tensor parallelism.
  comm::ProcessGroupPtr rdp_control;
  /// Among the ranks of this pipeline; nullptr with one pipeline rank.
  transport::TransportPtr transport;
  /// The group whose ranks run tasks in one order: the TP_GROUP, whose tasks hold collectives, or
  /// with deterministic_server the DP_GROUP.
  Group order_group = Group::kTP;
  /// nullptr: each rank runs tasks in its own order.
  transport::TransportPtr order_transport;
  std::unique_ptr<timeline::Recorder> recorder;
  /// nullptr without offload_activations.
  std::shared_ptr<offload::Offloader> offloader;
  /// nullptr without "random": "layout_independent".
  std::shared_ptr<const random::Layout> random_layout;
  /// Made with the first model whose shard groups are on several nodes. It is last, because it ends
  /// while the world still works.
  std::shared_ptr<sharding::PartService> part_service;

  comm::ProcessGroup& group(Group kind) const {
    return groups->at(kind);
  }
  topology::Coordinates coordinates() const {
    return layout->coordinates(world->rank());
  }
  /// See the public functions of these names (train/session.h).
  int data_rank() const {
    return group(config.prescaled_batch ? Group::kRDP : Group::kDP).rank();
  }
  int data_size() const {
    return group(config.prescaled_batch ? Group::kRDP : Group::kDP).size();
  }
  double data_weight() const {
    return shares.weight_of(data_rank());
  }
};

/// Makes groups and transports of a world that `config` fits. Collective over the world.
std::shared_ptr<Context> make_context(const Config& config, comm::WorldPtr world);

/// For what may outlive `shutdown`. Throws: ConfigError when the context is gone.
Context& in_force(const std::weak_ptr<Context>& context);

} // namespace tessera
