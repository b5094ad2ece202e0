// Rank 1 gives up while the others wait for it; the job must end at once.
#include "tessera/comm/world.h"

int main() {
  const auto world = tessera::comm::mpi_world({});
  if (world->rank() == 1) {
    world->abort("the disk is full", 3);
  }
  world->receive(1); // would wait for half an hour
  return 0;
}
