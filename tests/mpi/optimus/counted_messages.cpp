#include "counted_messages.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <utility>

#include <mpi.h>

namespace {

std::vector<int>& node_list() {
  static std::vector<int> of_ranks;
  return of_ranks;
}

std::atomic<std::int64_t> sent_bytes{0};
std::atomic<std::int64_t> sent_between_nodes{0};

int world_rank() {
  int rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

/// Returns the rank in MPI_COMM_WORLD of rank `rank` of `comm`.
int world_rank_of(int rank, MPI_Comm comm) {
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group some = MPI_GROUP_NULL;
  PMPI_Comm_group(MPI_COMM_WORLD, &all);
  PMPI_Comm_group(comm, &some);
  int found = 0;
  PMPI_Group_translate_ranks(some, 1, &rank, all, &found);
  PMPI_Group_free(&some);
  PMPI_Group_free(&all);
  return found;
}

int node_of(int rank) {
  return node_list()[static_cast<std::size_t>(rank)];
}

} // namespace

// Names and arguments are MPI's.
extern "C" {

int MPI_Isend(
    const void* data,
    int count,
    MPI_Datatype type,
    int to,
    int tag,
    MPI_Comm comm,
    MPI_Request* request) {
  int size = 0;
  PMPI_Type_size(type, &size);
  const std::int64_t bytes = static_cast<std::int64_t>(count) * size;
  sent_bytes += bytes;
  if (!node_list().empty() && node_of(world_rank_of(to, comm)) != node_of(world_rank())) {
    sent_between_nodes += bytes;
  }
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* made) {
  if (node_list().empty() || type != MPI_COMM_TYPE_SHARED) {
    return PMPI_Comm_split_type(comm, type, key, info, made);
  }
  return PMPI_Comm_split(comm, node_of(world_rank()), key, made);
}

int MPI_Get_processor_name(char* name, int* length) {
  if (node_list().empty()) {
    return PMPI_Get_processor_name(name, length);
  }
  *length = std::snprintf(name, MPI_MAX_PROCESSOR_NAME, "node%d", node_of(world_rank()));
  return MPI_SUCCESS;
}

} // extern "C"

namespace tessera::testing {

void set_nodes(std::vector<int> of_ranks) {
  node_list() = std::move(of_ranks);
}

Sent take_sent() {
  return {sent_bytes.exchange(0), sent_between_nodes.exchange(0)};
}

Sent take_sent_by_all() {
  const Sent mine = take_sent();
  std::array<std::int64_t, 2> sums = {mine.bytes, mine.between_nodes};
  PMPI_Allreduce(MPI_IN_PLACE, sums.data(), 2, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  return {sums[0], sums[1]};
}

} // namespace tessera::testing
