#include "tessera/comm/backends/shm/make_shm_engine.h"

#include "tessera/base/error.h"
#include "tessera/comm/backends/shm/shm_engine.h"
#include "tessera/comm/group_setup.h"

namespace tessera::comm::shm {

namespace {

SegmentPtr create_for(World& world, const GroupInfo& info) {
  auto segment =
      std::make_shared<const ipc::Segment>(ipc::Segment::create(group_segment_bytes(info.size())));
  for (const int rank : info.ranks) {
    if (rank != world.rank()) {
      world.send(rank, segment->address().to_numbers(), kGroupSetupTag);
    }
  }
  return segment;
}

} // namespace

std::unique_ptr<Engine> make_shm_engine(World& world, const GroupInfo& info) {
  const int leader = info.ranks.front();
  SegmentPtr segment;
  std::string error;
  if (world.rank() == leader) {
    segment = create_for(world, info);
  } else {
    const auto numbers = world.receive(leader, kGroupSetupTag).toIntVector();
    try {
      segment = std::make_shared<const ipc::Segment>(
          ipc::Segment::open(ipc::SegmentAddress::from_numbers(numbers)));
    } catch (const CommError& e) {
      error =
          str(info.text(),
              ": rank ",
              world.rank(),
              " cannot map the memory of rank ",
              leader,
              " on the same node: ",
              e.what(),
              "; set same_node to 'mpi' when ranks cannot see each other's "
              "processes");
    }
  }
  // The maker's descriptor stays open until everybody has mapped the memory.
  throw_first_error(world, info.ranks, error, kGroupSetupTag);
  return std::make_unique<ShmEngine>(info, segment);
}

} // namespace tessera::comm::shm
