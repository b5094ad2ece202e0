#pragma once

#include <string>
#include <vector>

namespace tessera::topology {

/// The position of a rank on a q x r mesh.
struct MeshCell {
  int row = 0;
  int column = 0;

  bool operator==(const MeshCell&) const = default;
};

/// How the ranks of a group are arranged as a mesh.
enum class MeshArrangement {
  /// The ranks of a node form a rectangle, as near to a square as divides the mesh, so that a row
  /// or column touches few nodes and few ranks share a cable (Xu et al. 2021, figure 8 b).
  kBunched,
  /// The ranks fill the mesh in their order, row by row (figure 8 a).
  kRowMajor
};

/// The numbers of rows and columns of a mesh.
struct MeshShape {
  int rows = 1;
  int columns = 1;

  bool operator==(const MeshShape&) const = default;
};

/// Returns the mesh of that many ranks: q x r with q * r == ranks and q <= r, as near to a square
/// as there is one. A prime number of ranks is one row. Throws: ConfigError for fewer ranks than
/// one.
MeshShape mesh_shape(int ranks);
/// Returns "2 x 3".
std::string text_of(const MeshShape& shape);

/// Computes rows, columns and positions of a mesh over the positions 0 .. q * r - 1 of a group. It
/// does not communicate.
class MeshLayout {
 public:
  /// `node_of_position` holds any number for each position, equal for positions on one node. Nodes
  /// that do not tile the mesh (unequal numbers of ranks, no rectangle that divides it) are laid
  /// out row by row, node by node.
  MeshLayout(const std::vector<int>& node_of_position, MeshArrangement arrangement);

  const MeshShape& shape() const {
    return shape_;
  }
  MeshCell cell_of(int position) const {
    return cells_[static_cast<std::size_t>(position)];
  }
  int position_at(MeshCell cell) const;

  /// Returns the positions of a mesh row from column 0 on, or of a column from row 0 on.
  std::vector<int> row(int index) const;
  std::vector<int> column(int index) const;

  /// Returns the rows and columns of the rectangle that a node holds; {1, r} when the layout is row
  /// by row.
  MeshCell tile() const {
    return tile_;
  }

 private:
  MeshShape shape_;
  MeshCell tile_;
  std::vector<MeshCell> cells_; // by position
  std::vector<int> positions_; // by row * columns + column
};

} // namespace tessera::topology
