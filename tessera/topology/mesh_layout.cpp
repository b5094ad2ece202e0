#include "tessera/topology/mesh_layout.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "tessera/base/error.h"

namespace tessera::topology {

namespace {

/// Rows and columns of a node's rectangle, {0, 0} when there is none. Of all
/// that divide the mesh the one whose sides differ least.
MeshCell tile_for(int ranks_of_node, const MeshShape& mesh) {
  MeshCell best;
  for (int rows = 1; rows <= ranks_of_node; ++rows) {
    const int columns = ranks_of_node / rows;
    const bool fits =
        rows * columns == ranks_of_node && mesh.rows % rows == 0 && mesh.columns % columns == 0;
    const bool squarer =
        best.row == 0 || std::abs(rows - columns) < std::abs(best.row - best.column);
    if (fits && squarer) {
      best = {rows, columns};
    }
  }
  return best;
}

/// Ranks of every node when all have equally many, else 0.
int ranks_of_each(const std::vector<int>& node_of_position) {
  std::map<int, int> count;
  for (const int node : node_of_position) {
    ++count[node];
  }
  const int first = count.begin()->second;
  const bool equal =
      std::all_of(count.begin(), count.end(), [&](auto& entry) { return entry.second == first; });
  return equal ? first : 0;
}

/// Positions node after node, nodes in the order in which they first appear.
std::vector<int> node_by_node(const std::vector<int>& node_of_position) {
  std::map<int, int> first;
  for (std::size_t i = 0; i < node_of_position.size(); ++i) {
    first.emplace(node_of_position[i], static_cast<int>(i));
  }
  std::vector<int> order(node_of_position.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return first[node_of_position[static_cast<std::size_t>(a)]] <
           first[node_of_position[static_cast<std::size_t>(b)]];
  });
  return order;
}

} // namespace

MeshShape mesh_shape(int ranks) {
  if (ranks < 1) {
    throw ConfigError(
        str("a two-dimensional mesh of ", ranks, " ranks; give it at least one rank"));
  }
  MeshShape shape{1, ranks};
  for (int rows = 2; rows * rows <= ranks; ++rows) {
    if (ranks % rows == 0) {
      shape = {rows, ranks / rows};
    }
  }
  return shape;
}

std::string text_of(const MeshShape& shape) {
  return str(shape.rows, " x ", shape.columns);
}

MeshLayout::MeshLayout(const std::vector<int>& node_of_position, MeshArrangement arrangement)
    : shape_(mesh_shape(static_cast<int>(node_of_position.size()))),
      tile_{1, shape_.columns},
      cells_(node_of_position.size()),
      positions_(node_of_position.size()) {
  std::vector<int> order(node_of_position.size());
  std::iota(order.begin(), order.end(), 0);
  if (arrangement == MeshArrangement::kBunched) {
    order = node_by_node(node_of_position);
    const int each = ranks_of_each(node_of_position);
    const MeshCell tile = each > 0 ? tile_for(each, shape_) : MeshCell();
    if (tile.row > 0) {
      tile_ = tile;
    }
  }
  const int tile_ranks = tile_.row * tile_.column;
  const int tiles_in_row = shape_.columns / tile_.column;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const int tile = static_cast<int>(i) / tile_ranks;
    const int inside = static_cast<int>(i) % tile_ranks;
    const MeshCell cell = {
        tile / tiles_in_row * tile_.row + inside / tile_.column,
        tile % tiles_in_row * tile_.column + inside % tile_.column};
    cells_[static_cast<std::size_t>(order[i])] = cell;
    positions_[static_cast<std::size_t>(cell.row * shape_.columns + cell.column)] = order[i];
  }
}

int MeshLayout::position_at(MeshCell cell) const {
  return positions_[static_cast<std::size_t>(cell.row * shape_.columns + cell.column)];
}

std::vector<int> MeshLayout::row(int index) const {
  std::vector<int> result;
  for (int column = 0; column < shape_.columns; ++column) {
    result.push_back(position_at({index, column}));
  }
  return result;
}

std::vector<int> MeshLayout::column(int index) const {
  std::vector<int> result;
  for (int row = 0; row < shape_.rows; ++row) {
    result.push_back(position_at({row, index}));
  }
  return result;
}

} // namespace tessera::topology
