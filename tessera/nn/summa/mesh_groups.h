#pragma once

#include <string>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/nn/parallel/collectives.h"
#include "tessera/topology/mesh_layout.h"

namespace tessera::nn::two_d {

/// Where a rank is on a q x r mesh over a TP_GROUP (q <= r, as near to a square
/// as its size allows), and the groups of its row and column. Threads: any, as
/// long as the groups live.
/// Source: Xu et al. 2021, section 2.4 and figure 8.
class MeshGroups {
 public:
  /// Collective over `group`.
  MeshGroups(comm::World& world, comm::ProcessGroup& group, topology::MeshArrangement arrangement);
  /// Of rank 0 on one node, with groups whose other ranks need not exist.
  MeshGroups(comm::ProcessGroup& group, comm::ProcessGroupPtr row, comm::ProcessGroupPtr column);

  /// q: samples and the rows of a weight are divided among the mesh rows.
  int rows() const {
    return layout_.shape().rows;
  }
  /// r: channels, heads and the columns of a weight among the mesh columns.
  int columns() const {
    return layout_.shape().columns;
  }
  /// How error texts name the mesh: "2 x 3".
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
  /// Ranks of my mesh row, and of my mesh column.
  comm::ProcessGroup& row_group() const {
    return *row_group_;
  }
  comm::ProcessGroup& column_group() const {
    return *column_group_;
  }
  /// Rank in row_group() of the rank of my row that stands in `column`.
  int in_row(int column) const {
    return in_row_[static_cast<std::size_t>(column)];
  }
  /// Rank in column_group() of the rank of my column that stands in `row`.
  int in_column(int row) const {
    return in_column_[static_cast<std::size_t>(row)];
  }
  /// For collectives in mesh order, as tensor_parallel() says of tracing.
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

} // namespace tessera::nn::two_d
