// The cases on processes: panels in memory that processes share, by broadcasts
// through shared memory and by broadcasts through MPI.
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/comm/world.h"

#include "cases.h"

namespace tessera::nn::summa {
namespace {

using Parameters = std::tuple<std::string, cases::Case>;

class OnMeshOfProcesses : public testing::TestWithParam<Parameters> {};

TEST_P(OnMeshOfProcesses, Holds) {
  const auto [way, test] = GetParam();
  comm::WorldOptions options;
  options.timeout = std::chrono::seconds(20);
  options.same_node = way == "mpi" ? "mpi" : "shm";
  const comm::WorldPtr world = comm::mpi_world(options);
  std::vector<int> ranks(static_cast<std::size_t>(world->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group = world->new_group("tp", ranks);
  MeshOptions mesh_options;
  mesh_options.shared_memory = way == "window";
  try {
    test.run(Mesh::make(*world, *group, mesh_options));
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
}

std::string name_of_test(const testing::TestParamInfo<Parameters>& info) {
  return std::string(std::get<1>(info.param).name) + "_" + std::get<0>(info.param);
}

INSTANTIATE_TEST_SUITE_P(
    Cases,
    OnMeshOfProcesses,
    testing::Combine(
        testing::Values("window", "shm", "mpi"),
        testing::ValuesIn(cases::all_cases())),
    name_of_test);

} // namespace
} // namespace tessera::nn::summa
