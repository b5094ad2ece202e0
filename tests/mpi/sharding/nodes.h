#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/sharding/part_service.h"
#include "tessera/train/session.h"

#include "tests/mpi/sharding/support.h"
#include "tests/mpi/transport/split_world.h"

/// Shard groups over several nodes, which are emulated on one.
namespace tessera::testing {

/// On which nodes the ranks are, and how parameters are gathered there.
struct Over {
  int ranks_of_node = 1;
  bool in_turn = false; // ranks 0, 2 on one node and 1, 3 on the other
  bool hierarchical = true;
  std::int64_t live = std::int64_t{1} << 30; // sdp_max_live_parameters
};

inline std::string text_of(const Over& over) {
  return str(
      over.ranks_of_node,
      over.in_turn ? " ranks of a node in turn" : " ranks of a node",
      over.hierarchical ? ", hierarchical" : ", flat",
      ", live ",
      over.live);
}

/// All ways of putting the ranks on more than one node.
inline std::vector<Over> nodes_of_ranks() {
  if (world_size() == 2) {
    return {{}};
  }
  return {{}, {.ranks_of_node = 2}, {.ranks_of_node = 2, .in_turn = true}};
}

inline Config over_nodes(Config config, const Over& over) {
  if (config.sharded_data_parallel_degree > 1) {
    config.sdp_hierarchical_allgather = over.hierarchical;
    config.sdp_max_live_parameters = over.live;
  }
  if (over.ranks_of_node == 1) {
    config.same_node_backend = "mpi"; // each rank is a node of its own
  }
  return config;
}

/// A world whose ranks say that they live on several hosts.
class HostsWorld : public transport::testing::SplitWorld {
 public:
  HostsWorld(const comm::WorldPtr& real, const std::vector<std::string>& hosts)
      : SplitWorld(*real, hosts), kept_(real) {}

 private:
  comm::WorldPtr kept_;
};

/// The library with this configuration on these nodes, until the end of the scope.
class OverNodes {
 public:
  OverNodes(const Config& config, const Over& over) {
    init(over_nodes(config, over));
    if (over.ranks_of_node == 1) {
      return;
    }
    std::vector<std::string> hosts;
    const int nodes = size() / over.ranks_of_node;
    for (int each = 0; each < size(); ++each) {
      hosts.push_back(str("node ", over.in_turn ? each % nodes : each / over.ranks_of_node));
    }
    context().world = std::make_shared<HostsWorld>(context().world, hosts);
  }
  ~OverNodes() {
    shutdown();
  }
  OverNodes(const OverNodes&) = delete;
  OverNodes& operator=(const OverNodes&) = delete;
};

inline const sharding::Gatherer& gatherer_of(const Model& model) {
  return *shards_of(model).parameters().gatherer();
}

} // namespace tessera::testing
