#include <algorithm>
#include <map>
#include <utility>

#include "tessera/autotune/probe/measure_pairs.h"
#include "tessera/autotune/probe/probe.h"
#include "tessera/autotune/probe/rounds.h"

namespace tessera::autotune {

namespace {

struct Pair {
  PairFacts best;
  Rounds seconds_a_byte;
};

double furthest(const std::map<std::pair<int, int>, Pair>& pairs) {
  double spread = 0;
  for (const auto& [ranks, pair] : pairs) {
    spread = std::max(spread, pair.seconds_a_byte.spread());
  }
  return spread;
}

} // namespace

std::vector<PairFacts> measure_links(
    comm::World& world,
    comm::ProcessGroup& everyone,
    const Effort& effort,
    cost::ProbeQuality& quality) {
  // With many ranks only some pairs are measured, those of every host among them.
  constexpr int kMostRanks = 16;
  constexpr int kMostRounds = 5;
  if (world.size() < 2) {
    return {};
  }
  std::map<std::pair<int, int>, Pair> pairs;
  bool again = true;
  for (int round = 0; again; ++round) {
    const auto measured = measure_pairs(world, everyone, effort.quick ? 4 : kMostRanks);
    for (const PairFacts& found : measured.pairs) {
      Pair& pair = pairs[{found.first, found.second}];
      pair.seconds_a_byte.add(1 / found.bytes_per_s);
      if (round == 0) {
        pair.best = found;
      }
      pair.best.bytes_per_s = std::max(pair.best.bytes_per_s, found.bytes_per_s);
      pair.best.latency_us = std::min(pair.best.latency_us, found.latency_us);
    }
    // Only rank 0 has the pairs, so it decides for all.
    again = round == 0 || (round + 1 < kMostRounds && furthest(pairs) > kAgreement);
    again = comm::broadcast_object(world, everyone, again, 0).toBool();
    quality.repeated += again && round > 0 ? 1 : 0;
  }
  quality.link_spread = furthest(pairs);
  std::vector<PairFacts> result;
  for (const auto& [ranks, pair] : pairs) {
    result.push_back(pair.best);
  }
  return result;
}

} // namespace tessera::autotune
