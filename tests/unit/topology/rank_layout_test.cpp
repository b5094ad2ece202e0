#include "tessera/topology/rank_layout.h"

#include <set>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::topology {
namespace {

using Groups = std::vector<std::vector<int>>;

TEST(RankLayout, DocumentedTableForDPT) {
  const RankLayout layout({2, 2, 2}, PlacementStrategy("DPT"));
  const std::vector<Coordinates> expected = {
      {0, 0, 0}, {0, 0, 1}, {0, 1, 0}, {0, 1, 1}, {1, 0, 0}, {1, 0, 1}, {1, 1, 0}, {1, 1, 1}};
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(layout.coordinates(rank), expected[rank]) << rank;
  }
}

TEST(RankLayout, DocumentedTableForPTD) {
  const RankLayout layout({2, 2, 2}, PlacementStrategy("PTD"));
  const std::vector<Coordinates> expected = {
      {0, 0, 0}, {1, 0, 0}, {0, 0, 1}, {1, 0, 1}, {0, 1, 0}, {1, 1, 0}, {0, 1, 1}, {1, 1, 1}};
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(layout.coordinates(rank), expected[rank]) << rank;
  }
}

TEST(RankLayout, DocumentedGroupsForSpread) {
  const RankLayout layout({2, 1, 4}, PlacementStrategy("spread"));
  EXPECT_EQ(layout.all(Group::kMP), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(layout.all(Group::kDP), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(layout.rank_in(Group::kDP, 6), 2);
  EXPECT_EQ(layout.rank_in(Group::kMP, 3), 0);
  EXPECT_EQ(layout.rank_in(Group::kMP, 4), 1);
}

TEST(RankLayout, DocumentedGroupsForCluster) {
  const RankLayout layout({2, 1, 4}, PlacementStrategy("cluster"));
  EXPECT_EQ(layout.all(Group::kMP), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(layout.all(Group::kDP), (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}}));
}

TEST(RankLayout, EveryPlacementIsABijectionWithConsistentGroups) {
  for (const char* strategy : {"DPT", "DTP", "PDT", "PTD", "TDP", "TPD", "cluster", "spread"}) {
    const RankLayout layout({3, 2, 2}, PlacementStrategy(strategy));
    std::set<std::tuple<int, int, int>> seen;
    for (int rank = 0; rank < layout.world_size(); ++rank) {
      const Coordinates at = layout.coordinates(rank);
      EXPECT_TRUE(seen.emplace(at.rdp, at.pp, at.tp).second) << rank << " in " << strategy;
      EXPECT_TRUE(at.rdp < 2 && at.pp < 3 && at.tp < 2) << rank << " in " << strategy;
      for (const Group group : kAllGroups) {
        const auto ranks = layout.members(group, rank);
        EXPECT_EQ(static_cast<int>(ranks.size()), layout.size_of(group));
        EXPECT_EQ(ranks[layout.rank_in(group, rank)], rank);
      }
    }
  }
}

TEST(RankLayout, BadPlacementSaysWhatToWrite) {
  for (const char* bad : {"", "DP", "DPTT", "DDT", "tpd", "ring"}) {
    try {
      PlacementStrategy placement{std::string_view(bad)};
      FAIL() << bad << " was accepted";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("permutation"), std::string::npos);
    }
  }
}

TEST(RankLayout, DegreeBelowOneIsRefused) {
  EXPECT_THROW(RankLayout({0, 1, 1}, PlacementStrategy("DPT")), ConfigError);
}

} // namespace
} // namespace tessera::topology
