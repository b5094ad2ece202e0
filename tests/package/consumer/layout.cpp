#include <cstdio>

#include "tessera/topology/rank_layout.h"

int main() {
  using namespace tessera::topology;
  const RankLayout layout(
      Degrees{.pipeline = 2, .tensor = 2, .reduced_data = 2}, PlacementStrategy("cluster"));
  const Coordinates at = layout.coordinates(3);
  std::printf("rank 3 of %d: rdp %d pp %d tp %d\n", layout.world_size(), at.rdp, at.pp, at.tp);
}
