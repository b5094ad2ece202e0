#include <functional>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/transport/transport.h"

#include "tests/unit/transport/exchange.h"

namespace tessera::transport {
namespace {

using testing::Side;
using Transports = std::vector<TransportPtr>;

Options small_buffer(std::int64_t bytes, double share = 0.5) {
  Options options;
  options.buffer_bytes = bytes;
  options.zero_copy_share = share;
  return options;
}

void run(Transports& transports, const std::function<void(const Side&)>& body) {
  const int size = static_cast<int>(transports.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(Side{*transports[static_cast<std::size_t>(rank)], rank, size});
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

TEST(Inproc, ValuesOfEveryKind) {
  for (const int size : {1, 2, 4}) {
    auto transports = make_inproc_transports(size, {});
    run(transports, testing::check_values);
    for (const auto& transport : transports) {
      EXPECT_EQ(transport->counters().messages_sent, 2 * size);
      EXPECT_EQ(transport->counters().mpi_tensors, 0);
      EXPECT_GT(transport->counters().shared_memory_tensors, 20);
    }
  }
}

TEST(Inproc, TrafficFromManyThreadsKeepsOrder) {
  auto transports = make_inproc_transports(3, {});
  run(transports, [](const Side& side) {
    testing::check_traffic(side, {.messages = 150, .threads = 3, .seed = 2});
  });
}

TEST(Inproc, AllIsSentBeforeAnyIsReceived) {
  // Far more than the rings hold, and the buffer fills up on the way.
  auto transports = make_inproc_transports(2, small_buffer(4 << 20));
  run(transports, [](const Side& side) {
    testing::check_traffic(side, {.messages = 1500, .largest = 20000, .send_first = true});
  });
  EXPECT_GT(transports[0]->counters().mpi_tensors, 0);
  EXPECT_GT(transports[0]->counters().shared_memory_tensors, 0);
}

TEST(Inproc, TensorsLargerThanTheBufferKeepTheirPlaceInTheOrder) {
  auto transports = make_inproc_transports(2, small_buffer(64 << 10));
  run(transports, testing::check_values);
  run(transports,
      [](const Side& side) { testing::check_traffic(side, {.messages = 300, .largest = 200000}); });
  EXPECT_GT(transports[1]->counters().mpi_tensors, 0);
  EXPECT_GT(transports[1]->counters().shared_memory_tensors, 0);
}

TEST(Inproc, AHeldTensorIsItsReceiversOwn) {
  for (const double share : {0.0, 0.5, 1.0}) {
    auto transports = make_inproc_transports(2, small_buffer(8 << 20, share));
    run(transports, [](const Side& side) { testing::check_lifetime(side, 10000); });
    EXPECT_EQ(transports[0]->counters().mpi_tensors, 0);
  }
}

TEST(Inproc, AHeldTensorOutlivesTheTransports) {
  at::Tensor held;
  {
    auto transports = make_inproc_transports(2, {});
    transports[0]->send(1, {}, torch::arange(100000));
    held = transports[1]->try_receive()->body.toTensor();
  }
  EXPECT_TRUE(torch::equal(held, torch::arange(100000)));
}

TEST(Inproc, HeldTensorsFillTheBufferAndNothingBlocks) {
  // 1 MiB holds no more than seven of these; the receiver keeps all 40.
  auto transports = make_inproc_transports(2, small_buffer(1 << 20, 1.0));
  std::vector<at::Tensor> held;
  for (int i = 0; i < 40; ++i) {
    transports[0]->send(1, {}, torch::full({32768}, static_cast<double>(i)));
    held.push_back(transports[1]->try_receive()->body.toTensor());
  }
  EXPECT_EQ(transports[0]->counters().shared_memory_tensors, 7);
  EXPECT_EQ(transports[0]->counters().mpi_tensors, 33);
  for (int i = 0; i < 40; ++i) {
    EXPECT_TRUE(torch::equal(
        held[static_cast<std::size_t>(i)], torch::full({32768}, static_cast<double>(i))));
  }
  held.clear();
  transports[0]->send(1, {}, torch::ones({32768}));
  EXPECT_EQ(transports[0]->counters().shared_memory_tensors, 8);
}

TEST(Inproc, BeyondTheShareTensorsAreCopiedOut) {
  auto transports = make_inproc_transports(2, small_buffer(1 << 20, 0.3));
  std::vector<at::Tensor> held;
  for (int i = 0; i < 100; ++i) {
    transports[0]->send(1, {}, torch::ones({32768}));
    held.push_back(transports[1]->try_receive()->body.toTensor());
  }
  EXPECT_EQ(transports[0]->counters().mpi_tensors, 0);
}

TEST(Inproc, ReceiveSleepsAndEndsAtItsTimeout) {
  auto transports = make_inproc_transports(2, {});
  timespec before{};
  timespec after{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(transports[0]->receive(std::chrono::milliseconds(500)));
  const auto waited = std::chrono::steady_clock::now() - start;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
  EXPECT_GE(waited, std::chrono::milliseconds(500));
  const auto busy_us =
      (after.tv_sec - before.tv_sec) * 1000000 + (after.tv_nsec - before.tv_nsec) / 1000;
  EXPECT_LT(busy_us, 20000);
  EXPECT_FALSE(transports[0]->receive(std::chrono::milliseconds(0)));
}

TEST(Inproc, WhatCannotBeDoneIsToldAndHarmsNothing) {
  auto transports = make_inproc_transports(2, {});
  EXPECT_THROW(transports[0]->send(2, {}, 1), CommError);
  EXPECT_THROW(transports[0]->send(1, {}, torch::eye(3).to_sparse()), CommError);
  transports[0]->send(1, {}, 5);
  EXPECT_EQ(transports[1]->try_receive()->body.toInt(), 5);
  EXPECT_THROW(make_inproc_transports(2, small_buffer(100)), ConfigError);
  EXPECT_THROW(make_inproc_transports(2, small_buffer(1 << 20, 1.5)), ConfigError);
}

} // namespace
} // namespace tessera::transport
