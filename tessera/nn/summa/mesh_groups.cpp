#include "tessera/nn/summa/mesh_groups.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::nn::summa {

namespace {

/// Numbers the hosts: returns the number of the host of each rank of the group.
std::vector<int> nodes_of(const comm::World& world, const comm::ProcessGroup& group) {
  std::map<std::string, int> number;
  std::vector<int> nodes;
  for (const int rank : group.ranks()) {
    const std::string& host = world.hosts()[static_cast<std::size_t>(rank)];
    nodes.push_back(number.emplace(host, static_cast<int>(number.size())).first->second);
  }
  return nodes;
}

comm::ProcessGroupPtr make_group(
    comm::World& world,
    const comm::ProcessGroup& group,
    const std::vector<int>& positions,
    const char* name) {
  std::vector<int> ranks;
  for (const int position : positions) {
    ranks.push_back(group.ranks()[static_cast<std::size_t>(position)]);
  }
  std::sort(ranks.begin(), ranks.end());
  return world.new_group(tessera::str(group.name(), name), ranks);
}

std::vector<int> ranks_in(
    const comm::ProcessGroup& part,
    const comm::ProcessGroup& group,
    const std::vector<int>& positions) {
  std::vector<int> result;
  for (const int position : positions) {
    const int rank = group.ranks()[static_cast<std::size_t>(position)];
    const auto found = std::find(part.ranks().begin(), part.ranks().end(), rank);
    result.push_back(static_cast<int>(found - part.ranks().begin()));
  }
  return result;
}

} // namespace

MeshGroups::MeshGroups(
    comm::World& world,
    comm::ProcessGroup& group,
    topology::MeshArrangement arrangement)
    : group_(group),
      layout_(nodes_of(world, group), arrangement),
      cell_(layout_.cell_of(group.rank())),
      row_group_(make_group(world, group, layout_.row(cell_.row), ".mesh_row")),
      column_group_(make_group(world, group, layout_.column(cell_.column), ".mesh_column")),
      in_row_(ranks_in(*row_group_, group, layout_.row(cell_.row))),
      in_column_(ranks_in(*column_group_, group, layout_.column(cell_.column))) {}

MeshGroups::MeshGroups(
    comm::ProcessGroup& group,
    comm::ProcessGroupPtr row,
    comm::ProcessGroupPtr column)
    : group_(group),
      layout_(
          std::vector<int>(static_cast<std::size_t>(group.size()), 0),
          topology::MeshArrangement::kBunched),
      cell_(layout_.cell_of(0)),
      row_group_(std::move(row)),
      column_group_(std::move(column)),
      in_row_(static_cast<std::size_t>(layout_.shape().columns)),
      in_column_(static_cast<std::size_t>(layout_.shape().rows)) {
  std::iota(in_row_.begin(), in_row_.end(), 0);
  std::iota(in_column_.begin(), in_column_.end(), 0);
}

Ranks MeshGroups::along_row() const {
  return {*row_group_, in_row_, tensor_parallel().shapes_only, row_group_};
}

Ranks MeshGroups::along_column() const {
  return {*column_group_, in_column_, tensor_parallel().shapes_only, column_group_};
}

} // namespace tessera::nn::summa
