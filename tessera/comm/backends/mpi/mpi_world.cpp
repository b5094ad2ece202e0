#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include <mpi.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/comm/backends/mpi/check.h"
#include "tessera/comm/backends/mpi/messenger.h"
#include "tessera/comm/backends/mpi/mpi_engine.h"
#include "tessera/comm/backends/shm/shm_engine.h"
#include "tessera/comm/group_setup.h"
#include "tessera/comm/object_codec.h"
#include "tessera/comm/queued_group.h"
#include "tessera/comm/world.h"

namespace tessera::comm::mpi {

namespace {

// MPI_Finalize waits for all ranks. One that ends with an error must not wait
// for others that train on and, in turn, wait for it.
constexpr unsigned kLeaveSeconds = 3;
int g_exit_status = 0;
std::array<char, 128> g_farewell{};

void leave_at_once(int) {
  const ssize_t written = ::write(STDERR_FILENO, g_farewell.data(), std::strlen(g_farewell.data()));
  static_cast<void>(written);
  ::_exit(g_exit_status);
}

void finalize_at_exit(int status, void*) {
  if (!mpi_is_running()) {
    return;
  }
  if (status != 0) {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    std::snprintf(
        g_farewell.data(),
        g_farewell.size(),
        "rank %d ended with status %d while other ranks still ran\n",
        rank,
        status);
    g_exit_status = status;
    std::signal(SIGALRM, leave_at_once);
    sigset_t alarm_only;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    ::pthread_sigmask(SIG_UNBLOCK, &alarm_only, nullptr);
    ::alarm(kLeaveSeconds);
  }
  MPI_Finalize();
  ::alarm(0);
}

// Open MPI puts long messages over TCP in parts that the receiver asks for, and
// what it asks waits behind the data that it sends itself: two ranks that send
// each other 2 MiB at once got half of a line's bandwidth. Sent without being
// asked for, they get nine tenths. What the user has set stands.
void prefer_messages_over_tcp() {
  ::setenv("OMPI_MCA_btl_tcp_flags", "send,inplace", /*overwrite=*/0);
}

void start_mpi() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  int provided = MPI_THREAD_SINGLE;
  if (initialized == 0) {
    prefer_messages_over_tcp();
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    ::on_exit(finalize_at_exit, nullptr); // glibc: unlike atexit, with the status
  } else {
    check_mpi(MPI_Query_thread(&provided), "MPI_Query_thread");
  }
  if (provided != MPI_THREAD_MULTIPLE) {
    throw CommError(
        str("MPI grants thread level ",
            provided,
            " where MPI_THREAD_MULTIPLE (",
            MPI_THREAD_MULTIPLE,
            ") is needed; initialise it with MPI_Init_thread and that level, or "
            "use an MPI built with thread support"));
  }
}

MPI_Comm duplicate_world() {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  return comm;
}

class MpiWorld final : public World {
 public:
  explicit MpiWorld(WorldOptions options)
      : options_(std::move(options)),
        comm_(duplicate_world()),
        messenger_(comm_.get(), options_.timeout) {
    check_mpi(MPI_Comm_rank(comm_.get(), &rank_), "MPI_Comm_rank");
    int size = 0;
    check_mpi(MPI_Comm_size(comm_.get(), &size), "MPI_Comm_size");
    learn_hosts(size);
    learn_nodes(size);
  }

  int rank() const override {
    return rank_;
  }
  int size() const override {
    return static_cast<int>(hosts_.size());
  }
  int local_rank() const override {
    return local_rank_;
  }
  int local_size() const override {
    return local_size_;
  }
  const std::vector<std::string>& hosts() const override {
    return hosts_;
  }
  const WorldOptions& options() const override {
    return options_;
  }

  ProcessGroupPtr new_group(const std::string& name, const std::vector<int>& ranks) override;

  void send(int peer, const c10::IValue& value, int tag) override {
    check_message(*this, peer, tag);
    messenger_.send(peer, tag, encode_object(value));
  }

  c10::IValue receive(int peer, int tag) override {
    check_message(*this, peer, tag);
    const std::vector<char> bytes = messenger_.receive(peer, tag);
    return decode_object(bytes.data(), bytes.size());
  }

  [[noreturn]] void abort(const std::string& message, int code) override;

 private:
  void learn_hosts(int size);
  void learn_nodes(int size);
  bool on_one_node(const GroupInfo& info) const;
  void rendezvous(const GroupInfo& info);
  std::unique_ptr<Engine> shm_engine(const GroupInfo& info);
  std::unique_ptr<Engine> mpi_engine(const GroupInfo& info);

  WorldOptions options_;
  Communicator comm_;
  Messenger messenger_; // ends before its communicator
  int rank_ = 0;
  int local_rank_ = 0;
  int local_size_ = 1;
  std::vector<std::string> hosts_;
  std::vector<int> nodes_; // of each rank: the smallest rank on its node
};

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
    rendezvous(info);
    if (on_one_node(info) && options_.same_node != "mpi") {
      engine = shm_engine(info);
    } else {
      engine = mpi_engine(info);
    }
  }
  return std::make_shared<QueuedGroup>(info, std::move(engine));
}

void MpiWorld::rendezvous(const GroupInfo& info) {
  // Bounded by the timeout, which MPI's own communicator calls are not.
  const int leader = info.ranks.front();
  if (rank_ != leader) {
    send(leader, info.text(), kGroupSetupTag);
    const c10::IValue answer = receive(leader, kGroupSetupTag);
    if (!answer.toStringRef().empty()) {
      throw CommError(answer.toStringRef());
    }
    return;
  }
  std::string error;
  for (std::size_t i = 1; i < info.ranks.size(); ++i) {
    const c10::IValue theirs = receive(info.ranks[i], kGroupSetupTag);
    if (theirs.toStringRef() != info.text()) {
      error =
          str("rank ",
              rank_,
              " makes ",
              info.text(),
              " while rank ",
              info.ranks[i],
              " makes ",
              theirs.toStringRef(),
              "; all members must make the same groups in the same order");
    }
  }
  for (std::size_t i = 1; i < info.ranks.size(); ++i) {
    send(info.ranks[i], error, kGroupSetupTag);
  }
  if (!error.empty()) {
    throw CommError(error);
  }
}

std::unique_ptr<Engine> MpiWorld::shm_engine(const GroupInfo& info) {
  const std::size_t bytes = shm::group_segment_bytes(info.size());
  std::shared_ptr<const shm::Segment> segment;
  const int leader = info.ranks.front();
  if (rank_ == leader) {
    segment = std::make_shared<const shm::Segment>(shm::Segment::create(bytes));
    const std::uint64_t nonce = draw_nonce();
    reinterpret_cast<shm::Header*>(segment->data())->nonce.store(nonce);
    const std::vector<std::int64_t> where = {
        ::getpid(), segment->fd(), static_cast<std::int64_t>(nonce)};
    for (std::size_t i = 1; i < info.ranks.size(); ++i) {
      send(info.ranks[i], where, kGroupSetupTag);
    }
    // The descriptor must stay open until everybody has mapped the memory.
    std::string error;
    for (std::size_t i = 1; i < info.ranks.size(); ++i) {
      const c10::IValue answer = receive(info.ranks[i], kGroupSetupTag);
      if (!answer.toStringRef().empty()) {
        error = answer.toStringRef();
      }
    }
    for (std::size_t i = 1; i < info.ranks.size(); ++i) {
      send(info.ranks[i], error, kGroupSetupTag);
    }
    if (!error.empty()) {
      throw CommError(error);
    }
  } else {
    const auto where = receive(leader, kGroupSetupTag).toIntVector();
    std::string error;
    try {
      segment = std::make_shared<const shm::Segment>(
          shm::Segment::open(static_cast<int>(where.at(0)), static_cast<int>(where.at(1)), bytes));
      const auto nonce = reinterpret_cast<shm::Header*>(segment->data())->nonce.load();
      if (nonce != static_cast<std::uint64_t>(where.at(2))) {
        throw CommError("other memory was found there");
      }
    } catch (const CommError& e) {
      error =
          str(info.text(),
              ": rank ",
              rank_,
              " cannot map the memory of rank ",
              leader,
              " on the same node: ",
              e.what(),
              "; set same_node to 'mpi' when ranks cannot see each other's "
              "processes");
    }
    send(leader, error, kGroupSetupTag);
    const c10::IValue verdict = receive(leader, kGroupSetupTag);
    if (!verdict.toStringRef().empty()) {
      throw CommError(verdict.toStringRef());
    }
  }
  return std::make_unique<shm::ShmEngine>(info, segment);
}

std::unique_ptr<Engine> MpiWorld::mpi_engine(const GroupInfo& info) {
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

} // namespace

} // namespace tessera::comm::mpi

namespace tessera::comm {

WorldPtr mpi_world(const WorldOptions& options) {
  check_options(options);
  mpi::start_mpi();
  return std::make_shared<mpi::MpiWorld>(options);
}

} // namespace tessera::comm
