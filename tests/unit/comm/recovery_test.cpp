// Windows that a rank abandons because its own code has failed. Ranks are
// threads; the cases of groups are in recovery_cases.cpp.
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/comm/peer_failed.h"
#include "tessera/comm/process_group.h"
#include "tessera/comm/shared_memory/shared_memory.h"
#include "tessera/comm/shared_memory/window.h"
#include "tessera/comm/world.h"

namespace tessera::comm {
namespace {

constexpr const char* kWhy = "rank 1, a layer: no such token";
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

TEST(Recovery, Windows) {
  on_ranks(3, [](ProcessGroup& group) {
    const auto window = group.shared_memory()->make_window(4096);
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
        require_failed([&] { window->wait(group.rank() == 0 ? 1 : 0, 2, turn, "a test"); });
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
