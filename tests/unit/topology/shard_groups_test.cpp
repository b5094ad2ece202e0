// Which ranks hold one copy of sharded parameters together, and which hold the same part.
#include "tessera/topology/shard_groups.h"

#include <gmock/gmock.h>

#include "tessera/base/error.h"

namespace tessera::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The documentation's example: 32 ranks, tensor parallel degree 4, sharding degree 4.
TEST(ShardGroups, OfTheDocumentedExample) {
  const RankLayout layout(
      {.pipeline = 1, .tensor = 4, .reduced_data = 8}, PlacementStrategy("cluster"));
  EXPECT_THAT(layout.members(Group::kTP, 0), ElementsAre(0, 1, 2, 3));
  const ShardGroups first = shard_groups(layout, 4, 0);
  EXPECT_THAT(first.shards, ElementsAre(0, 4, 8, 12));
  EXPECT_THAT(first.replicas, ElementsAre(0, 16));
  EXPECT_THAT(first.equal_replicas, ElementsAre(0, 1, 2, 3, 16, 17, 18, 19));
  EXPECT_THAT(shard_groups(layout, 4, 28).shards, ElementsAre(16, 20, 24, 28));
  EXPECT_THAT(shard_groups(layout, 4, 28).replicas, ElementsAre(12, 28));
  EXPECT_THAT(shard_groups(layout, 4, 5).shards, ElementsAre(1, 5, 9, 13));
}

TEST(ShardGroups, LieInsideOfAStage) {
  const RankLayout layout(
      {.pipeline = 2, .tensor = 2, .reduced_data = 4}, PlacementStrategy("cluster"));
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    const ShardGroups groups = shard_groups(layout, 2, rank);
    EXPECT_EQ(groups.shards.size(), 2U);
    EXPECT_EQ(groups.replicas.size(), 2U);
    EXPECT_EQ(groups.equal_replicas.size(), 4U);
    for (const auto& list : {groups.shards, groups.replicas, groups.equal_replicas}) {
      for (const int other : list) {
        EXPECT_EQ(layout.coordinates(other).pp, layout.coordinates(rank).pp);
      }
    }
    for (const auto& list : {groups.shards, groups.replicas}) {
      for (const int other : list) {
        EXPECT_EQ(layout.coordinates(other).tp, layout.coordinates(rank).tp);
      }
    }
  }
}

TEST(ShardGroups, CoverEveryRankOnce) {
  const RankLayout layout(
      {.pipeline = 1, .tensor = 2, .reduced_data = 6}, PlacementStrategy("spread"));
  for (const int degree : {1, 2, 3, 6}) {
    for (int rank = 0; rank < layout.world_size(); ++rank) {
      const ShardGroups groups = shard_groups(layout, degree, rank);
      EXPECT_EQ(static_cast<int>(groups.shards.size()), degree);
      EXPECT_EQ(groups.shards.size() * groups.replicas.size(), 6U);
      EXPECT_THAT(groups.shards, ::testing::Contains(rank));
      EXPECT_THAT(groups.replicas, ::testing::Contains(rank));
      for (const int other : groups.shards) { // all members know the same group
        EXPECT_EQ(shard_groups(layout, degree, other).shards, groups.shards);
      }
    }
  }
}

TEST(ShardGroups, RefuseADegreeThatDoesNotDivide) {
  const RankLayout layout(
      {.pipeline = 1, .tensor = 1, .reduced_data = 4}, PlacementStrategy("cluster"));
  try {
    shard_groups(layout, 3, 0);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("sharded_data_parallel_degree 3 does not divide the 4"));
  }
}

} // namespace
} // namespace tessera::topology
