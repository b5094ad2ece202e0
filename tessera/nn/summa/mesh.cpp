#include "tessera/nn/summa/mesh.h"

#include <utility>

#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/comm/shared_memory/shared_memory.h"
#include "tessera/nn/summa/broadcast_exchange.h"
#include "tessera/nn/summa/exchange.h"
#include "tessera/nn/summa/window_exchange.h"

namespace tessera::nn::summa {

namespace {

std::size_t physical_memory() {
  return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

} // namespace

Mesh::Mesh(MeshGroups groups) : MeshGroups(std::move(groups)) {}

Mesh::~Mesh() = default;

MeshPtr Mesh::make(comm::World& world, comm::ProcessGroup& group, const MeshOptions& options) {
  const MeshPtr mesh(new Mesh(MeshGroups(world, group, options.arrangement)));
  comm::SharedMemory* memory = options.shared_memory ? group.shared_memory() : nullptr;
  if (memory != nullptr) {
    mesh->exchange_ = std::make_unique<WindowExchange>(
        *mesh,
        memory->make_window(options.shared_bytes > 0 ? options.shared_bytes : physical_memory()));
  } else {
    mesh->exchange_ = std::make_unique<BroadcastExchange>(*mesh);
  }
  return mesh;
}

MeshPtr
Mesh::outline(comm::ProcessGroup& group, comm::ProcessGroupPtr row, comm::ProcessGroupPtr column) {
  const MeshPtr mesh(new Mesh(MeshGroups(group, std::move(row), std::move(column))));
  mesh->exchange_ = std::make_unique<BroadcastExchange>(*mesh);
  mesh->outline_ = true;
  return mesh;
}

bool Mesh::reads_all() const {
  return outline_ || exchange_->rows() != nullptr;
}

void Mesh::note_entered(c10::IntArrayRef leading, bool same) {
  // An empty list means "not known": activations have at least one leading
  // dimension, so none of them compares equal to it.
  entered_ = same ? leading.vec() : std::vector<std::int64_t>();
}

void Mesh::abandon(const std::string& why) const {
  row_group().abandon(why);
  column_group().abandon(why);
  exchange_->abandon(why);
}

void Mesh::recover() const {
  row_group().recover();
  column_group().recover();
  exchange_->recover();
}

const MeshPtr& mesh_of(const TensorParallel& parallel) {
  if (parallel.mesh == nullptr) {
    throw ConfigError(
        "a two-dimensional module was made without a mesh; make it inside a "
        "TensorParallelScope (or after set_tensor_parallel) with a mesh");
  }
  return parallel.mesh;
}

} // namespace tessera::nn::summa
