// Broadcasts over ranks of several nodes, here nodes by their word only: every
// way to deal ranks to nodes, every root, short and long tensors.
#include <chrono>
#include <numeric>
#include <vector>

#include <mpi.h>

#include <gtest/gtest.h>

#include "tessera/comm/backends/mpi/mpi_engine.h"

namespace tessera::comm::mpi {
namespace {

TEST(MpiEngineBroadcast, OverNodes) {
  GroupInfo info;
  info.name = "test";
  info.timeout = std::chrono::milliseconds(60000);
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &info.rank);
  info.ranks.resize(static_cast<std::size_t>(size));
  std::iota(info.ranks.begin(), info.ranks.end(), 0);
  const std::vector<std::vector<int>> ways = {
      {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1}, {1, 0, 2, 2}, {3, 2, 1, 0}};
  for (std::vector<int> nodes : ways) {
    nodes.resize(static_cast<std::size_t>(size));
    MPI_Comm comm = MPI_COMM_NULL;
    ASSERT_EQ(MPI_Comm_dup(MPI_COMM_WORLD, &comm), MPI_SUCCESS);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MpiEngine engine(info, comm, nodes);
    for (int root = 0; root < size; ++root) {
      for (const std::size_t count : {0U, 1U, 7U, 50001U}) {
        std::vector<std::int64_t> data(count, -1);
        if (info.rank == root) {
          std::iota(data.begin(), data.end(), root);
        }
        Operation operation;
        operation.kind = Collective::kBroadcast;
        operation.type = DataType::kI64;
        operation.root = root;
        operation.input = data.data();
        operation.output = data.data();
        operation.count = static_cast<std::int64_t>(count);
        engine.run(operation);
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_EQ(data[i], root + static_cast<std::int64_t>(i));
        }
      }
    }
    engine.run(Operation()); // barrier
  }
}

} // namespace
} // namespace tessera::comm::mpi
