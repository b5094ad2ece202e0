#include "tessera/autotune/probe/measure_pairs.h"

#include <numeric>

#include <ATen/ATen.h>

#include "tessera/autotune/probe/pairs_to_measure.h"
#include "tessera/base/error.h"
#include "tessera/base/statistics.h"
#include "tessera/base/stopwatch.h"
#include "tessera/transport/transport.h"

namespace tessera::autotune {

namespace {

constexpr int kRounds = 100;
constexpr int kWarmRounds = 10;
constexpr int kLargeRounds = 5;
constexpr std::int64_t kLargeElements = std::int64_t{4} << 20; // 16 MiB f32

transport::Parcel next(transport::Transport& transport, const comm::World& world, int peer) {
  auto parcel = transport.receive(world.options().timeout);
  if (!parcel || parcel->source != peer) {
    throw CommError(
        str("links: rank ",
            world.rank(),
            " waits for a message of rank ",
            peer,
            parcel ? str(" and got one of rank ", parcel->source)
                   : str(" for more than ", world.options().timeout.count(), " ms")));
  }
  return std::move(*parcel);
}

/// Sends one message and receives one, copied into `in`. The rank that `begins` sends first.
void exchange(
    transport::Transport& transport,
    const comm::World& world,
    int peer,
    bool begins,
    const at::Tensor& out,
    at::Tensor& in) {
  if (begins) {
    transport.send(peer, {}, out);
  }
  in.copy_(next(transport, world, peer).body.toTensor());
  if (!begins) {
    transport.send(peer, {}, out);
  }
}

/// Returns half the median seconds of an exchange, which on the rank that `begins` are the
/// seconds of one way.
double measure_exchange(
    transport::Transport& transport,
    const comm::World& world,
    int peer,
    bool begins,
    std::int64_t elements,
    int rounds,
    int warm_rounds = kWarmRounds) {
  const at::Tensor out = at::ones({elements});
  at::Tensor in = at::zeros({elements});
  std::vector<double> seconds;
  for (int round = 0; round < rounds + warm_rounds; ++round) {
    const auto begin = Clock::now();
    exchange(transport, world, peer, begins, out, in);
    if (round >= warm_rounds) {
      seconds.push_back(seconds_since(begin) / 2);
    }
  }
  if (in.sum().item<double>() != static_cast<double>(elements)) {
    throw CommError(str("links: what rank ", peer, " sent arrives damaged on rank ", world.rank()));
  }
  return median(seconds);
}

/// Returns the one-way seconds of the largest message. A slow link gets fewer rounds;
/// the rank that `begins` decides and tells its peer in a message.
double
measure_large(transport::Transport& transport, const comm::World& world, int peer, bool begins) {
  constexpr std::int64_t kPart = 16;
  constexpr double kLongS = 0.1;
  const double part_s =
      measure_exchange(transport, world, peer, begins, kLargeElements / kPart, 2, 1);
  at::Tensor slow = at::zeros({1});
  if (begins) {
    slow.fill_(part_s * kPart > kLongS ? 1.0 : 0.0);
    transport.send(peer, {}, slow);
  } else {
    slow.copy_(next(transport, world, peer).body.toTensor());
  }
  const bool is_slow = slow.item<float>() != 0;
  return measure_exchange(
      transport,
      world,
      peer,
      begins,
      kLargeElements,
      is_slow ? 1 : kLargeRounds,
      is_slow ? 0 : kWarmRounds);
}

} // namespace

PairMeasurements measure_pairs(comm::World& world, comm::ProcessGroup& group, int most_ranks) {
  PairMeasurements result;
  if (world.size() < 2) {
    return result;
  }
  const int size = world.size();
  std::vector<bool> chosen(static_cast<std::size_t>(size), false);
  std::vector<int> peers(static_cast<std::size_t>(size));
  std::iota(peers.begin(), peers.end(), 0);
  transport::Options options;
  options.buffer_bytes = std::int64_t{64} << 20;
  const auto transport = transport::make_transport(world, peers, options);
  std::vector<PairFacts> mine;
  for (const auto& [first, second] : pairs_to_measure(world.hosts(), most_ranks)) {
    chosen[static_cast<std::size_t>(first)] = chosen[static_cast<std::size_t>(second)] = true;
    group.barrier(); // one pair at a time
    if (world.rank() != first && world.rank() != second) {
      continue;
    }
    const bool begins = world.rank() == first;
    const int peer = begins ? second : first;
    PairFacts pair;
    pair.first = first;
    pair.second = second;
    pair.latency_us = 1e6 * measure_exchange(*transport, world, peer, begins, 1, kRounds);
    const auto before = transport->counters().shared_memory_tensors;
    const double large_s = measure_large(*transport, world, peer, begins);
    pair.shared_memory = transport->counters().shared_memory_tensors > before;
    pair.bytes_per_s = 4.0 * static_cast<double>(kLargeElements) / large_s;
    if (begins) {
      mine.push_back(pair);
    }
  }
  at::Tensor rows = at::zeros({static_cast<std::int64_t>(mine.size()), 5}, at::kDouble);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    rows[row][0] = mine[i].first;
    rows[row][1] = mine[i].second;
    rows[row][2] = mine[i].latency_us;
    rows[row][3] = mine[i].bytes_per_s;
    rows[row][4] = mine[i].shared_memory ? 1.0 : 0.0;
  }
  for (const auto& value : comm::gather_object(world, group, rows, 0)) {
    const at::Tensor theirs = value.toTensor();
    for (std::int64_t i = 0; i < theirs.size(0); ++i) {
      PairFacts pair;
      pair.first = static_cast<int>(theirs[i][0].item<double>());
      pair.second = static_cast<int>(theirs[i][1].item<double>());
      pair.latency_us = theirs[i][2].item<double>();
      pair.bytes_per_s = theirs[i][3].item<double>();
      pair.shared_memory = theirs[i][4].item<double>() != 0;
      result.pairs.push_back(pair);
    }
  }
  for (int rank = 0; rank < size; ++rank) {
    if (!chosen[static_cast<std::size_t>(rank)]) {
      result.unmeasured.push_back(rank);
    }
  }
  return result;
}

} // namespace tessera::autotune
