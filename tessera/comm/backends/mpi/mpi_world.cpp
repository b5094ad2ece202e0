#include "tessera/comm/backends/mpi/mpi_world.h"

#include <array>
#include <csignal>
#include <cstdio>
#include <utility>

#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/comm/backends/mpi/mpi_engine.h"
#include "tessera/comm/codec/object_codec.h"
#include "tessera/comm/group_setup.h"
#include "tessera/comm/queued_group.h"

namespace tessera::comm::mpi {

namespace {

MPI_Comm duplicate_world() {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  return comm;
}

} // namespace

MpiWorld::MpiWorld(WorldOptions options, EngineMaker make_engine)
    : options_(std::move(options)),
      make_engine_(std::move(make_engine)),
      comm_(duplicate_world()),
      messenger_(comm_.get(), options_.timeout) {
  check_mpi(MPI_Comm_rank(comm_.get(), &rank_), "MPI_Comm_rank");
  int size = 0;
  check_mpi(MPI_Comm_size(comm_.get(), &size), "MPI_Comm_size");
  learn_hosts(size);
  learn_nodes(size);
}

void MpiWorld::learn_hosts(int size) {
  constexpr int kName = MPI_MAX_PROCESSOR_NAME;
  std::array<char, kName> mine{};
  int length = 0;
  check_mpi(MPI_Get_processor_name(mine.data(), &length), "MPI_Get_processor_name");
  std::vector<char> all(static_cast<std::size_t>(size) * kName);
  check_mpi(
      MPI_Allgather(mine.data(), kName, MPI_CHAR, all.data(), kName, MPI_CHAR, comm_.get()),
      "exchanging host names");
  for (int rank = 0; rank < size; ++rank) {
    hosts_.emplace_back(all.data() + static_cast<std::size_t>(rank) * kName);
  }
}

void MpiWorld::learn_nodes(int size) {
  MPI_Comm raw = MPI_COMM_NULL;
  check_mpi(
      MPI_Comm_split_type(comm_.get(), MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &raw),
      "MPI_Comm_split_type");
  const Communicator node(raw);
  check_mpi(MPI_Comm_rank(node.get(), &local_rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(node.get(), &local_size_), "MPI_Comm_size");
  int first = rank_;
  check_mpi(MPI_Bcast(&first, 1, MPI_INT, 0, node.get()), "numbering the nodes");
  nodes_.resize(static_cast<std::size_t>(size));
  check_mpi(
      MPI_Allgather(&first, 1, MPI_INT, nodes_.data(), 1, MPI_INT, comm_.get()),
      "numbering the nodes");
}

bool MpiWorld::on_one_node(const GroupInfo& info) const {
  for (const int member : info.ranks) {
    if (nodes_[static_cast<std::size_t>(member)] != nodes_[static_cast<std::size_t>(rank_)]) {
      return false;
    }
  }
  return true;
}

ProcessGroupPtr MpiWorld::new_group(const std::string& name, const std::vector<int>& ranks) {
  const GroupInfo info = make_group_info(*this, name, ranks);
  std::unique_ptr<Engine> engine;
  if (info.size() > 1) {
    // This wait is bounded by the timeout; MPI's own communicator calls are not.
    check_same_group(*this, info);
    engine = make_engine_(*this, info);
  }
  return std::make_shared<QueuedGroup>(info, std::move(engine));
}

void MpiWorld::send(int peer, const c10::IValue& value, int tag) {
  check_message(*this, peer, tag);
  messenger_.send(peer, tag, encode_object(value));
}

c10::IValue MpiWorld::receive(int peer, int tag) {
  check_message(*this, peer, tag);
  const std::vector<std::byte> bytes = messenger_.receive(peer, tag);
  return decode_object(bytes);
}

std::unique_ptr<Engine> MpiWorld::make_mpi_engine(const GroupInfo& info) const {
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group members = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_group(comm_.get(), &all), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(all, info.size(), info.ranks.data(), &members), "MPI_Group_incl");
  check_mpi(
      MPI_Comm_create_group(comm_.get(), members, kGroupSetupTag, &comm), "MPI_Comm_create_group");
  MPI_Group_free(&members);
  MPI_Group_free(&all);
  std::vector<int> nodes;
  for (const int rank : info.ranks) {
    nodes.push_back(nodes_[static_cast<std::size_t>(rank)]);
  }
  return std::make_unique<MpiEngine>(info, comm, std::move(nodes));
}

void MpiWorld::abort(const std::string& message, int code) {
  std::fprintf(stderr, "rank %d: %s\n", rank_, message.c_str());
  std::fflush(stderr);
  // MPI_Abort may itself hang, in a thread that holds one of MPI's locks for
  // instance. The alarm then ends this process, and the launcher the others.
  std::signal(SIGALRM, SIG_DFL);
  sigset_t alarm_only;
  sigemptyset(&alarm_only);
  sigaddset(&alarm_only, SIGALRM);
  ::pthread_sigmask(SIG_UNBLOCK, &alarm_only, nullptr);
  ::alarm(5);
  const int status = code != 0 ? code : 1;
  if (mpi_is_running()) {
    MPI_Abort(MPI_COMM_WORLD, status);
  }
  ::_exit(status);
}

} // namespace tessera::comm::mpi
