#include "tessera/nn/summa/mesh.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/comm/shared_memory/shared_memory.h"
#include "tessera/nn/summa/broadcast_exchange.h"
#include "tessera/nn/summa/exchange.h"
#include "tessera/nn/summa/window_exchange.h"

namespace tessera::nn::two_d {

namespace {

/// A number for the host of each rank of the group.
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

std::size_t physical_memory() {
  return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

} // namespace

MeshPtr Mesh::make(comm::World& world, comm::ProcessGroup& group, const MeshOptions& options) {
  return MeshPtr(new Mesh(world, group, options));
}

Mesh::Mesh(comm::World& world, comm::ProcessGroup& group, const MeshOptions& options)
    : group_(group),
      layout_(nodes_of(world, group), options.arrangement),
      cell_(layout_.cell_of(group.rank())),
      row_group_(make_group(world, group, layout_.row(cell_.row), ".mesh_row")),
      column_group_(make_group(world, group, layout_.column(cell_.column), ".mesh_column")),
      in_row_(ranks_in(*row_group_, group, layout_.row(cell_.row))),
      in_column_(ranks_in(*column_group_, group, layout_.column(cell_.column))) {
  comm::SharedMemory* memory = options.shared_memory ? group.shared_memory() : nullptr;
  if (memory != nullptr) {
    exchange_ = std::make_unique<WindowExchange>(
        *this,
        memory->make_window(options.shared_bytes > 0 ? options.shared_bytes : physical_memory()));
  } else {
    exchange_ = std::make_unique<BroadcastExchange>(*this);
  }
}

MeshPtr
Mesh::outline(comm::ProcessGroup& group, comm::ProcessGroupPtr row, comm::ProcessGroupPtr column) {
  return MeshPtr(new Mesh(group, std::move(row), std::move(column)));
}

Mesh::Mesh(comm::ProcessGroup& group, comm::ProcessGroupPtr row, comm::ProcessGroupPtr column)
    : group_(group),
      layout_(
          std::vector<int>(static_cast<std::size_t>(group.size()), 0),
          topology::MeshArrangement::kBunched),
      cell_(layout_.cell_of(0)),
      row_group_(std::move(row)),
      column_group_(std::move(column)),
      in_row_(static_cast<std::size_t>(layout_.side())),
      in_column_(in_row_.size()),
      exchange_(std::make_unique<BroadcastExchange>(*this)),
      outline_(true) {
  std::iota(in_row_.begin(), in_row_.end(), 0);
  in_column_ = in_row_;
}

Mesh::~Mesh() = default;

bool Mesh::reads_all() const {
  return outline_ || exchange_->rows() != nullptr;
}

void Mesh::note_entered(c10::IntArrayRef leading, bool same) {
  // No activation has no dimensions, so none is as long as this.
  entered_ = same ? leading.vec() : std::vector<std::int64_t>();
}

void Mesh::abandon(const std::string& why) const {
  row_group_->abandon(why);
  column_group_->abandon(why);
  exchange_->abandon(why);
}

void Mesh::recover() const {
  row_group_->recover();
  column_group_->recover();
  exchange_->recover();
}

} // namespace tessera::nn::two_d
