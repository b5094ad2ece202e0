// The conformance cases on processes: shared memory and MPI messages.
#include <exception>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "conformance.h"

namespace tessera::comm {
namespace {

using conformance::Case;

class MpiWorld : public testing::TestWithParam<std::tuple<std::string, Case>> {};

TEST_P(MpiWorld, Conforms) {
  const auto [same_node, test] = GetParam();
  WorldOptions options;
  options.timeout = test.timeout;
  options.same_node = same_node;
  const WorldPtr world = mpi_world(options);
  if (world->size() < test.min_ranks) {
    GTEST_SKIP() << "needs " << test.min_ranks << " ranks";
  }
  try {
    test.run(*world);
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Backends,
    MpiWorld,
    testing::Combine(testing::Values("shm", "mpi"), testing::ValuesIn(conformance::all_cases())),
    [](const auto& info) {
      return std::string(std::get<1>(info.param).name) + "_" + std::get<0>(info.param);
    });

} // namespace
} // namespace tessera::comm
