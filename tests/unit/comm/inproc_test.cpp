// The conformance cases on worlds inside one process.
#include <exception>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

#include "conformance.h"

namespace tessera::comm {
namespace {

using conformance::Case;

class Inproc : public testing::TestWithParam<std::tuple<int, Case>> {};

TEST_P(Inproc, Conforms) {
  const auto [size, test] = GetParam();
  if (size < test.min_ranks) {
    GTEST_SKIP() << "needs " << test.min_ranks << " ranks";
  }
  WorldOptions options;
  options.timeout = test.timeout;
  const std::vector<WorldPtr> worlds = inproc_worlds(size, options);
  std::vector<std::string> errors(worlds.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < worlds.size(); ++rank) {
    threads.emplace_back([world = worlds[rank], run = test.run, error = &errors[rank]] {
      try {
        run(*world);
      } catch (const std::exception& e) {
        *error = e.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    Inproc,
    testing::Combine(testing::Values(1, 2, 3, 4), testing::ValuesIn(conformance::all_cases())),
    [](const auto& info) {
      return std::string(std::get<1>(info.param).name) + "_" +
             std::to_string(std::get<0>(info.param));
    });

TEST(InprocWorlds, RefusesOptionsThatMakeNoSense) {
  WorldOptions options;
  EXPECT_THROW(inproc_worlds(0, options), ConfigError);
  options.same_node = "mpi";
  EXPECT_THROW(inproc_worlds(2, options), ConfigError);
  options.same_node = "pigeon";
  EXPECT_THROW(inproc_worlds(2, options), ConfigError);
  options.same_node = "auto";
  options.timeout = std::chrono::milliseconds(0);
  EXPECT_THROW(inproc_worlds(2, options), ConfigError);
}

} // namespace
} // namespace tessera::comm
