#include <algorithm>
#include <chrono>

#include <ATen/ATen.h>

#include "tessera/base/statistics.h"
#include "tessera/base/stopwatch.h"

#include "cli/doctor/measure.h"

namespace tessera::cli::doctor {

namespace {

constexpr int kClockTag = 1;
constexpr int kRounds = 100;
constexpr int kLargeRounds = 5;
constexpr std::int64_t kLargeElements = std::int64_t{4} << 20; // 16 MiB f32

std::int64_t wall_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

} // namespace

double measure_all_reduce(comm::ProcessGroup& group) {
  if (group.size() < 2) {
    return 0;
  }
  at::Tensor tensor = at::zeros({kLargeElements});
  std::vector<double> seconds;
  for (int round = 0; round < kLargeRounds + 1; ++round) {
    group.barrier();
    const auto begin = Clock::now();
    group.all_reduce(tensor);
    if (round > 0) {
      seconds.push_back(seconds_since(begin));
    }
  }
  return static_cast<double>(tensor.nbytes()) / median(seconds);
}

void measure_clock(comm::World& world, RankFacts& facts) {
  // Cristian's method: the shortest round trip bounds the error best.
  if (world.rank() != 0) {
    double shortest_ns = 0;
    for (int round = 0; round < kRounds; ++round) {
      const std::int64_t sent = wall_ns();
      world.send(0, sent, kClockTag);
      const std::int64_t theirs = world.receive(0, kClockTag).toInt();
      const std::int64_t received = wall_ns();
      const auto trip_ns = static_cast<double>(received - sent);
      if (round == 0 || trip_ns < shortest_ns) {
        shortest_ns = trip_ns;
        const double middle_ns =
            static_cast<double>(sent - theirs) + static_cast<double>(received - sent) / 2;
        facts.clock_offset_us = middle_ns * 1e-3;
        facts.clock_error_us = trip_ns * 0.5e-3;
      }
    }
    return;
  }
  for (int peer = 1; peer < world.size(); ++peer) {
    for (int round = 0; round < kRounds; ++round) {
      world.receive(peer, kClockTag);
      world.send(peer, wall_ns(), kClockTag);
    }
  }
}

void gather(
    comm::World& world,
    const comm::ProcessGroup& group,
    const RankFacts& facts,
    Examination& examination) {
  for (const auto& text : comm::gather_object(world, group, to_text(facts), 0)) {
    examination.ranks.push_back(rank_facts_from_text(text.toStringRef()));
  }
}

} // namespace tessera::cli::doctor
