// Parts over nodes of several ranks each. The nodes are names that a world says.
#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/sharding/divided_parameters.h"

#include "tests/mpi/transport/split_world.h"

namespace tessera::testing {
namespace {

using transport::testing::SplitWorld;

/// The parts of a few tensors over hosts of these names.
struct OverHosts {
  OverHosts(comm::World& real, const std::vector<std::string>& hosts, bool hierarchical)
      : world(real, hosts) {
    std::vector<int> ranks(real.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    group = world.new_group("shards", ranks);
    const sharding::ShardNodes nodes = sharding::shard_nodes(world, ranks);
    node = world.new_group("node", nodes.members[nodes.own]);
    at::manual_seed(7);
    for (const int elements : {1, 5, 64, 1001}) {
      values.push_back(at::randn({elements}));
      parameters.push_back({str("of ", elements), values.back().clone().requires_grad_()});
    }
    divided = std::make_unique<sharding::DividedParameters>(
        *group,
        sharding::DividedParameters::Gathering{world, nodes, *node, hierarchical, 1 << 20},
        parameters,
        [](const std::string&, const at::Tensor&) {});
  }
  SplitWorld world;
  comm::ProcessGroupPtr group;
  comm::ProcessGroupPtr node;
  std::vector<at::Tensor> values;
  NamedTensors parameters;
  std::unique_ptr<sharding::DividedParameters> divided;
};

TEST(Nodes, OfSeveralRanksGatherInsideThemFirst) {
  comm::WorldOptions options;
  options.timeout = std::chrono::seconds(60);
  const comm::WorldPtr real = comm::mpi_world(options);
  const int size = real->size();
  for (const bool interleaved : {false, true}) {
    std::vector<std::string> hosts;
    for (int rank = 0; rank < size; ++rank) {
      hosts.emplace_back((interleaved ? rank % 2 == 0 : rank < size / 2) ? "one" : "other");
    }
    for (const bool hierarchical : {true, false}) {
      OverHosts over(*real, hosts, hierarchical);
      const at::NoGradGuard no_grad;
      for (int round = 0; round < 2; ++round) {
        for (std::size_t i = 0; i < over.values.size(); ++i) {
          EXPECT_TRUE(over.parameters[i].second.add(0).equal(over.values[i] + 3 * round))
              << over.parameters[i].first << ", interleaved " << interleaved << ", hierarchical "
              << hierarchical;
        }
        // A message from the other node for each, or one from each of its ranks.
        const auto count = static_cast<std::int64_t>(over.values.size()) * (round + 1);
        EXPECT_EQ(
            over.divided->gatherer()->service().messages(),
            hierarchical ? count : count * size / 2);
        over.divided->before_writing();
        for (const auto& parameter : over.divided->list()) {
          parameter.part.detach().add_(3);
        }
        over.divided->after_writing();
      }
      over.group->barrier();
    }
  }
}

TEST(Nodes, OneHostNeedsNoMessages) {
  comm::WorldOptions options;
  options.timeout = std::chrono::seconds(60);
  const comm::WorldPtr real = comm::mpi_world(options);
  OverHosts over(*real, std::vector<std::string>(real->size(), "one"), true);
  EXPECT_EQ(over.divided->gatherer(), nullptr);
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(over.parameters.back().second.add(0).equal(over.values.back()));
  over.group->barrier();
}

} // namespace
} // namespace tessera::testing
