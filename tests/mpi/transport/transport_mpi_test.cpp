#include <chrono>
#include <ctime>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/transport/transport.h"

#include "tests/mpi/transport/split_world.h"
#include "tests/unit/transport/exchange.h"

namespace tessera::transport {
namespace {

using testing::Side;
using testing::SplitWorld;

comm::World& world() {
  comm::WorldOptions options;
  options.timeout = std::chrono::seconds(60);
  static const comm::WorldPtr shared = comm::mpi_world(options);
  return *shared;
}

std::vector<int> everyone() {
  std::vector<int> ranks(static_cast<std::size_t>(world().size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Neighbouring ranks on different nodes.
SplitWorld two_nodes() {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < world().size(); ++rank) {
    hosts.push_back(rank % 2 == 0 ? "even" : "odd");
  }
  return SplitWorld(world(), hosts);
}

TransportPtr make(comm::World& over, std::int64_t bytes, double share = 0.5) {
  Options options;
  options.buffer_bytes = bytes;
  options.zero_copy_share = share;
  return make_transport(over, everyone(), options);
}

Side side_of(const TransportPtr& transport) {
  return Side{*transport, world().rank(), world().size()};
}

TEST(OverProcesses, ValuesOfEveryKind) {
  const auto transport = make(world(), 64 << 20);
  testing::check_values(side_of(transport));
  EXPECT_EQ(transport->counters().mpi_tensors, 0);
  EXPECT_GT(transport->counters().shared_memory_tensors, 20);
}

TEST(OverProcesses, TrafficFromSeveralThreadsKeepsOrder) {
  const auto transport = make(world(), 64 << 20);
  testing::check_traffic(side_of(transport), {.messages = 200, .threads = 2, .seed = 4});
}

TEST(OverProcesses, AFullBufferFallsBackToMpiInOrder) {
  const auto transport = make(world(), 1 << 20);
  testing::check_traffic(
      side_of(transport), {.messages = 300, .largest = 50000, .send_first = true});
  EXPECT_GT(transport->counters().mpi_tensors, 0);
  EXPECT_GT(transport->counters().shared_memory_tensors, 0);
}

TEST(OverProcesses, ValuesLargerThanTheBuffer) {
  const auto transport = make(world(), 64 << 10);
  testing::check_values(side_of(transport));
  EXPECT_GT(transport->counters().mpi_tensors, 0);
}

TEST(OverProcesses, AHeldTensorIsItsReceiversOwn) {
  const auto transport = make(world(), 32 << 20);
  testing::check_lifetime(side_of(transport), 10000);
  EXPECT_EQ(transport->counters().mpi_tensors, 0);
}

TEST(OverProcesses, WhatWasSentIsReadAfterItsSenderLeft) {
  const int size = world().size();
  for (const bool split : {false, true}) {
    auto over = two_nodes();
    comm::World& chosen = split ? static_cast<comm::World&>(over) : world();
    auto transport = make(chosen, 1 << 20);
    const auto large = torch::full({500000}, world().rank() + 0.5);
    for (int to = 0; to < size; ++to) {
      transport->send(to, {}, large);
    }
    if (world().rank() != 0) {
      for (int i = 0; i < size; ++i) {
        const Parcel parcel = testing::take(side_of(transport));
        EXPECT_EQ(parcel.body.toTensor()[1234].item<float>(), parcel.source + 0.5F);
      }
      transport.reset();
      world().send(0, world().rank(), 1);
    } else {
      // Nothing is taken before everybody else has all theirs and is leaving.
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      for (int i = 0; i < size; ++i) {
        const Parcel parcel = testing::take(side_of(transport));
        EXPECT_EQ(parcel.body.toTensor()[1234].item<float>(), parcel.source + 0.5F);
      }
      for (int from = 1; from < size; ++from) {
        EXPECT_EQ(world().receive(from, 1).toInt(), from);
      }
    }
  }
}

TEST(OverNodes, ValuesOfEveryKind) {
  auto over = two_nodes();
  const auto transport = make(over, 64 << 20);
  testing::check_values(side_of(transport));
  EXPECT_GT(transport->counters().mpi_tensors, 20);
}

TEST(OverProcesses, ShareNothingWhenToldToUseMpi) {
  testing::SplitWorld over(world(), world().hosts(), "mpi");
  const auto transport = make(over, 64 << 20);
  testing::check_values(side_of(transport));
  EXPECT_GT(transport->counters().mpi_tensors, 20);
}

TEST(OverNodes, TrafficKeepsOrder) {
  auto over = two_nodes();
  const auto transport = make(over, 4 << 20);
  testing::check_traffic(side_of(transport), {.messages = 200, .threads = 2, .seed = 9});
}

TEST(OverNodes, AllIsSentBeforeAnyIsReceived) {
  auto over = two_nodes();
  const auto transport = make(over, 1 << 20);
  testing::check_traffic(
      side_of(transport), {.messages = 300, .largest = 50000, .send_first = true});
}

TEST(OverNodes, AHeldTensorIsItsReceiversOwn) {
  auto over = two_nodes();
  const auto transport = make(over, 32 << 20);
  testing::check_lifetime(side_of(transport), 1000);
}

TEST(OverNodes, WaitingDoesNotBurnTheCore) {
  auto over = two_nodes();
  const auto transport = make(over, 1 << 20);
  timespec before{};
  timespec after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  EXPECT_FALSE(transport->receive(std::chrono::seconds(1)));
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const auto busy_ms =
      (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
  // Of 1000, which a thread that spins takes; asking MPI took 10 to 330, by machine and load.
  EXPECT_LT(busy_ms, 700);
}

TEST(Groups, SeveralTransportsOverPartsOfTheWorld) {
  const int size = world().size();
  const auto all = make(world(), 4 << 20);
  TransportPtr ends;
  const std::vector<int> pair{size - 1, 0}; // in any order
  if (world().rank() == 0 || world().rank() == size - 1) {
    ends = make_transport(world(), pair, {.buffer_bytes = 4 << 20});
    const int other = size - 1 - world().rank();
    ends->send(other, {}, torch::full({5000}, world().rank()));
    Parcel parcel = std::move(*ends->receive(std::chrono::minutes(1)));
    EXPECT_EQ(parcel.source, other);
    EXPECT_EQ(parcel.body.toTensor()[4999].item<int>(), other);
    if (size > 2) {
      EXPECT_THROW(ends->send(1, {}, 1), CommError);
    }
  }
  testing::check_values(side_of(all));
}

TEST(Groups, PeersThatCannotBeAreRefused) {
  EXPECT_THROW(make_transport(world(), {}, {}), CommError);
  EXPECT_THROW(make_transport(world(), {(world().rank() + 1) % world().size()}, {}), CommError);
  EXPECT_THROW(make_transport(world(), {world().rank(), world().rank()}, {}), CommError);
}

} // namespace
} // namespace tessera::transport
