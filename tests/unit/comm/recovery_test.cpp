// Ranks whose own code fails between two collectives: their peers are told, and
// all go on together after `recover`. Ranks are threads.
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/comm/recoverable.h"
#include "tessera/comm/shm/window.h"
#include "tessera/comm/world.h"

namespace tessera::comm {
namespace {

constexpr const char* kWhy = "rank 1, a layer: no such token";
// More than the four rounds that a rank may be ahead of the others.
constexpr std::int64_t kMany = 3000000;

/// Runs `run` as every rank of a world; fails with what a rank throws.
void on_ranks(int size, const std::function<void(ProcessGroup&)>& run) {
  WorldOptions options;
  options.timeout = std::chrono::milliseconds(100000);
  const std::vector<WorldPtr> worlds = inproc_worlds(size, options);
  std::vector<std::string> errors(worlds.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < worlds.size(); ++rank) {
    threads.emplace_back([world = worlds[rank], &run, error = &errors[rank]] {
      try {
        std::vector<int> all(static_cast<std::size_t>(world->size()));
        std::iota(all.begin(), all.end(), 0);
        const ProcessGroupPtr group = world->new_group("all", all);
        run(*group);
      } catch (const std::exception& e) {
        *error = e.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(errors, std::vector<std::string>(errors.size()));
}

void require(bool condition, const std::string& text) {
  if (!condition) {
    throw std::runtime_error(text);
  }
}

void require_failed(const std::function<void()>& run) {
  std::string found = "nothing was thrown";
  try {
    run();
  } catch (const PeerFailed& error) {
    found = error.what();
  }
  require(found == kWhy, found);
}

/// Sums that show whether all ranks are in one operation.
void require_sums(ProcessGroup& group, int from) {
  for (int i = from; i < from + 5; ++i) {
    for (const std::int64_t count : {std::int64_t{3}, kMany}) {
      const auto x = torch::full({count}, i + group.rank());
      group.all_reduce(x);
      const int wanted =
          group.size() * i + group.size() * (group.size() - 1) / 2;
      require(x.eq(wanted).all().item<bool>(), str("sums of turn ", i));
    }
  }
  group.barrier();
}

TEST(Recovery, OneRankFails) {
  on_ranks(3, [](ProcessGroup& group) {
    for (int turn = 0; turn < 3; ++turn) {
      require_sums(group, turn);
      if (group.rank() == 1) {
        abandon(group, kWhy);
      } else {
        // The first may be one whose root never waits.
        require_failed([&] {
          for (int i = 0; i < 10; ++i) {
            group.broadcast(torch::zeros({kMany}), 0);
          }
        });
        require_failed([&] { group.barrier(); });
        require_failed([&] { group.barrier_async()->wait(); });
        abandon(group, "what this rank says of that");
      }
      recover(group);
    }
    require_sums(group, 9);
  });
}

TEST(Recovery, WhatWasStartedBeforeTheFailureEnds) {
  on_ranks(2, [](ProcessGroup& group) {
    const auto x = torch::ones({kMany});
    const auto y = torch::ones({kMany});
    const WorkPtr first = group.all_reduce_async(x, ReduceOp::kSum);
    const WorkPtr second = group.all_reduce_async(y, ReduceOp::kSum);
    if (group.rank() == 1) {
      abandon(group, kWhy);
    } else {
      const WorkPtr third = group.barrier_async();
      first->wait();
      second->wait();
      require(y.eq(2).all().item<bool>(), "the second operation");
      require_failed([&] { third->wait(); });
    }
    recover(group);
    require_sums(group, 1);
  });
}

TEST(Recovery, RanksThatFailTogetherGoOn) {
  on_ranks(3, [](ProcessGroup& group) {
    require_sums(group, 0);
    abandon(group, kWhy);
    require_sums(group, 1);
    abandon(group, kWhy);
    require_sums(group, 2);
    recover(group);
    require_sums(group, 3);
  });
}

TEST(Recovery, OneThatGoesOnAloneFailsToo) {
  on_ranks(3, [](ProcessGroup& group) {
    require_sums(group, 0);
    if (group.rank() == 1) {
      abandon(group, kWhy);
    }
    require_failed([&] {
      for (int i = 0; i < 3; ++i) {
        group.all_reduce(torch::ones({kMany}));
      }
    });
    recover(group);
    require_sums(group, 1);
  });
}

TEST(Recovery, Windows) {
  on_ranks(3, [](ProcessGroup& group) {
    const auto window = group.make_window(4096);
    for (std::uint32_t turn = 1; turn < 4; ++turn) {
      window->post(0, turn);
      for (int rank = 0; rank < group.size(); ++rank) {
        window->wait(rank, 0, turn, "a test");
      }
      if (group.rank() == 1) {
        window->post(1, turn);
        window->abandon(kWhy);
      } else {
        window->wait(1, 1, turn, "what was posted before");
        // Rank 2 waits for rank 0, which waits for rank 1.
        require_failed([&] {
          window->wait(group.rank() == 0 ? 1 : 0, 2, turn, "a test");
        });
      }
      group.barrier();
      window->recover();
      window->post(2, turn);
      group.barrier();
      window->wait(1, 2, turn, "a test");
    }
  });
}

} // namespace
} // namespace tessera::comm
