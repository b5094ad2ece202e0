#include "tessera/topology/mesh_layout.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::topology {
namespace {

/// Node of each of `count` ranks, `each` on a node, one node after the other.
std::vector<int> block_nodes(int count, int each) {
  std::vector<int> nodes;
  for (int i = 0; i < count; ++i) {
    nodes.push_back(i / each);
  }
  return nodes;
}

std::size_t nodes_in(const std::vector<int>& positions, const std::vector<int>& nodes) {
  std::set<int> found;
  for (const int position : positions) {
    found.insert(nodes[static_cast<std::size_t>(position)]);
  }
  return found.size();
}

TEST(MeshLayout, Figure8) {
  const std::vector<int> nodes = block_nodes(16, 4);
  const MeshLayout natural(nodes, MeshArrangement::kRowMajor);
  const MeshLayout bunched(nodes, MeshArrangement::kBunched);
  EXPECT_EQ(bunched.tile(), (MeshCell{2, 2}));
  for (int i = 0; i < 4; ++i) {
    // (a): a column crosses all four nodes. (b): rows and columns cross two.
    EXPECT_EQ(nodes_in(natural.row(i), nodes), 1U);
    EXPECT_EQ(nodes_in(natural.column(i), nodes), 4U);
    EXPECT_EQ(nodes_in(bunched.row(i), nodes), 2U);
    EXPECT_EQ(nodes_in(bunched.column(i), nodes), 2U);
  }
  EXPECT_EQ(bunched.row(0), (std::vector<int>{0, 1, 4, 5}));
  EXPECT_EQ(bunched.column(0), (std::vector<int>{0, 2, 8, 10}));
}

TEST(MeshLayout, EveryPositionHasOneCell) {
  for (const int ranks : {1, 2, 4, 5, 6, 8, 9, 12, 16, 36}) {
    const MeshShape shape = mesh_shape(ranks);
    for (const int each : {1, 2, 3, 4, 6, 9}) {
      if (ranks % each != 0) {
        continue;
      }
      for (const auto arrangement : {MeshArrangement::kBunched, MeshArrangement::kRowMajor}) {
        const MeshLayout mesh(block_nodes(ranks, each), arrangement);
        std::set<int> seen;
        for (int row = 0; row < shape.rows; ++row) {
          for (int column = 0; column < shape.columns; ++column) {
            const int position = mesh.position_at({row, column});
            EXPECT_EQ(mesh.cell_of(position), (MeshCell{row, column}));
            seen.insert(position);
          }
        }
        EXPECT_EQ(seen.size(), static_cast<std::size_t>(ranks));
      }
    }
  }
}

TEST(MeshLayout, RanksDealtRoundRobinAreGatheredByNode) {
  // Ranks 0 2 4 6 ... on one node: their numbers say nothing, their node does.
  std::vector<int> nodes;
  for (int i = 0; i < 16; ++i) {
    nodes.push_back(i % 4);
  }
  const MeshLayout mesh(nodes, MeshArrangement::kBunched);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(nodes_in(mesh.row(i), nodes), 2U);
    EXPECT_EQ(nodes_in(mesh.column(i), nodes), 2U);
  }
}

TEST(MeshLayout, NodesThatCannotBeTiledFollowEachOther) {
  const MeshLayout unequal({0, 0, 0, 1, 1, 1, 1, 2, 2}, MeshArrangement::kBunched);
  EXPECT_EQ(unequal.row(0), (std::vector<int>{0, 1, 2}));
  // Nine ranks on nodes of 9: one tile, the whole mesh.
  EXPECT_EQ(MeshLayout(block_nodes(9, 9), MeshArrangement::kBunched).tile(), (MeshCell{3, 3}));
}

TEST(MeshLayout, AsNearToASquareAsThereIsOne) {
  EXPECT_EQ(mesh_shape(1), (MeshShape{1, 1}));
  EXPECT_EQ(mesh_shape(2), (MeshShape{1, 2}));
  EXPECT_EQ(mesh_shape(6), (MeshShape{2, 3}));
  EXPECT_EQ(mesh_shape(7), (MeshShape{1, 7}));
  EXPECT_EQ(mesh_shape(8), (MeshShape{2, 4}));
  EXPECT_EQ(mesh_shape(12), (MeshShape{3, 4}));
  EXPECT_EQ(mesh_shape(16), (MeshShape{4, 4}));
  EXPECT_EQ(text_of(mesh_shape(6)), "2 x 3");
  EXPECT_THROW(mesh_shape(0), ConfigError);
}

TEST(MeshLayout, NodesTileAMeshThatIsNoSquare) {
  // Two nodes of four on 2 x 4: a row crosses both, a column stays in one.
  const std::vector<int> nodes = block_nodes(8, 4);
  const MeshLayout mesh(nodes, MeshArrangement::kBunched);
  EXPECT_EQ(mesh.tile(), (MeshCell{2, 2}));
  EXPECT_EQ(mesh.row(0), (std::vector<int>{0, 1, 4, 5}));
  EXPECT_EQ(mesh.column(3), (std::vector<int>{5, 7}));
  // Three nodes of two on 2 x 3: a node is a column.
  EXPECT_EQ(
      MeshLayout(block_nodes(6, 2), MeshArrangement::kBunched).column(1), (std::vector<int>{2, 3}));
}

} // namespace
} // namespace tessera::topology
