#pragma once

#include <string>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/nn/parallel/collectives.h"
#include "tessera/topology/mesh_layout.h"

namespace tessera::nn::summa {

/// A rank's position on a q x r mesh over a TP_GROUP (q <= r, as near to a square
/// as its size allows), and the groups of its row and column. Threads: any, while
/// the groups live.
/// Source: Xu et al. 2021, section 2.4 and figure 8.
class MeshGroups {
 public:
  /// Makes the groups of all rows and columns. Collective over `group`.
  MeshGroups(comm::World& world, comm::ProcessGroup& group, topology::MeshArrangement arrangement);
  /// Describes rank 0 of a mesh on one node; the other ranks of the groups need not exist.
  MeshGroups(comm::ProcessGroup& group, comm::ProcessGroupPtr row, comm::ProcessGroupPtr column);

  /// Returns q. Samples and the rows of a weight are divided among the mesh rows.
  int rows() const {
    return layout_.shape().rows;
  }
  /// Returns r. Features, heads and the columns of a weight are divided among the mesh columns.
  int columns() const {
    return layout_.shape().columns;
  }
  /// Returns the shape for error texts: "2 x 3".
  std::string shape_text() const {
    return topology::text_of(layout_.shape());
  }
  int row() const {
    return cell_.row;
  }
  int column() const {
    return cell_.column;
  }
  const topology::MeshLayout& layout() const {
    return layout_;
  }
  /// The whole mesh.
  comm::ProcessGroup& group() const {
    return group_;
  }
  /// The ranks of my mesh row, and of my mesh column.
  comm::ProcessGroup& row_group() const {
    return *row_group_;
  }
  comm::ProcessGroup& column_group() const {
    return *column_group_;
  }
  /// Returns the rank within row_group() of the rank at my row and `column`.
  int in_row(int column) const {
    return in_row_[static_cast<std::size_t>(column)];
  }
  /// Returns the rank within column_group() of the rank at `row` and my column.
  int in_column(int row) const {
    return in_column_[static_cast<std::size_t>(row)];
  }
  /// Returns the ranks of my row (my column) in mesh order, for collectives. While
  /// tensor_parallel().shapes_only is set, these record their sizes only.
  Ranks along_row() const;
  Ranks along_column() const;

 private:
  comm::ProcessGroup& group_;
  topology::MeshLayout layout_;
  topology::MeshCell cell_;
  comm::ProcessGroupPtr row_group_;
  comm::ProcessGroupPtr column_group_;
  std::vector<int> in_row_;
  std::vector<int> in_column_;
};

} // namespace tessera::nn::summa
