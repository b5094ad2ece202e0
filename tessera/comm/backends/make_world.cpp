// The one file that knows all back ends: which world there is, and which engine a group gets.
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/backends/inproc/inproc_world.h"
#include "tessera/comm/backends/mpi/environment.h"
#include "tessera/comm/backends/mpi/mpi_world.h"
#include "tessera/comm/backends/shm/make_shm_engine.h"
#include "tessera/comm/backends/shm/shm_engine.h"
#include "tessera/comm/group_setup.h"
#include "tessera/comm/world.h"

namespace tessera::comm {

namespace {

std::unique_ptr<Engine> engine_of_processes(mpi::MpiWorld& world, const GroupInfo& info) {
  if (world.on_one_node(info) && world.options().same_node != "mpi") {
    return shm::make_shm_engine(world, info);
  }
  return world.make_mpi_engine(info);
}

std::unique_ptr<Engine> engine_of_threads(const GroupInfo& info, shm::SegmentPtr segment) {
  return std::make_unique<shm::ShmEngine>(info, std::move(segment));
}

} // namespace

WorldPtr mpi_world(const WorldOptions& options) {
  check_options(options);
  mpi::start_mpi();
  return std::make_shared<mpi::MpiWorld>(options, engine_of_processes);
}

std::vector<WorldPtr> inproc_worlds(int size, const WorldOptions& options) {
  check_options(options);
  if (size < 1) {
    throw ConfigError(str("a world of ", size, " ranks; expected 1 or more"));
  }
  if (options.same_node == "mpi") {
    throw ConfigError(
        "same_node is 'mpi', but worlds inside one process have no MPI; "
        "expected 'auto' or 'shm'");
  }
  const inproc::InprocWorld::EngineMaker maker{shm::group_segment_bytes, engine_of_threads};
  const auto hub = inproc::make_hub();
  std::vector<WorldPtr> worlds;
  for (int rank = 0; rank < size; ++rank) {
    worlds.push_back(std::make_shared<inproc::InprocWorld>(hub, rank, size, options, maker));
  }
  return worlds;
}

} // namespace tessera::comm
