#include "tessera/transport/mpi/mpi_channel.h"

#include <algorithm>
#include <climits>
#include <mutex>
#include <utility>

#include <mpi.h>

#include "tessera/base/deadline.h"
#include "tessera/base/error.h"
#include "tessera/comm/backends/mpi/check.h"
#include "tessera/comm/tags.h"

namespace tessera::transport::mpi {

namespace {

using comm::mpi::check_mpi;
using std::chrono::microseconds;
using std::chrono::nanoseconds;

constexpr int kMessageTag = 1;
constexpr int kBulkTag = 2;

// After something moved it polls without pause for a while, then at doubling intervals up to a
// limit that depends on what is waited for. On a crowded node an interval is a share of the time
// that nothing has moved: in a virtual machine each sleep makes the guest leave for its host
// several times, and polls of an idle rank every 100 us made the one that computed on the same core
// take 1.6 times as long.
constexpr int kEagerPolls = 50;
constexpr microseconds kFirstPause{10};
constexpr microseconds kPauseTransfer{100}; // requests are under way
constexpr microseconds kPauseAwaited{100}; // a thread sleeps in receive
constexpr microseconds kPauseListening{1000};
constexpr int kCrowdedShare = 8;
constexpr microseconds kCrowdedLeast{20};
constexpr microseconds kCrowdedTransfer{250};

MPI_Comm make_communicator(const std::vector<int>& ranks) {
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  check_mpi(
      MPI_Group_incl(world, static_cast<int>(ranks.size()), ranks.data(), &group),
      "MPI_Group_incl");
  check_mpi(
      MPI_Comm_create_group(MPI_COMM_WORLD, group, comm::kTransportSetupTag, &comm),
      "making the transport's communicator");
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  return comm;
}

// A send or receive, in one or more requests.
struct Operation {
  bool is_send = false;
  int peer = -1;
  int tag = 0;
  std::byte* data = nullptr; // only read when is_send
  std::size_t bytes = 0;
  std::shared_ptr<const void> keep; // owner of data
  std::function<void()> done;
  int requests_left = 0;
};
using OperationPtr = std::shared_ptr<Operation>;

class MpiChannel final : public Channel {
 public:
  explicit MpiChannel(MpiChannelOptions options)
      : options_(std::move(options)),
        listens_(std::count(options_.other_node.begin(), options_.other_node.end(), true) != 0),
        comm_(make_communicator(options_.ranks)),
        sends_(options_.ranks.size(), 0) {}

  ~MpiChannel() override;

  void send_bulk(BulkSend bulk) override {
    Operation operation;
    operation.is_send = true;
    operation.peer = bulk.peer;
    operation.tag = kBulkTag;
    operation.data = const_cast<std::byte*>(bulk.data);
    operation.bytes = bulk.bytes;
    operation.keep = std::move(bulk.keep);
    ask(std::move(operation));
  }

  void receive_bulk(BulkReceive bulk) override {
    Operation operation;
    operation.peer = bulk.source;
    operation.tag = kBulkTag;
    operation.data = bulk.into;
    operation.bytes = bulk.bytes;
    operation.done = std::move(bulk.done);
    ask(std::move(operation));
  }

  void send_message(int peer, std::vector<std::byte> message) override {
    if (message.size() > static_cast<std::size_t>(INT_MAX)) {
      throw CommError(
          str("a message of ",
              message.size(),
              " bytes besides its tensors is too large; send it as a tensor"));
    }
    auto keep = std::make_shared<std::vector<std::byte>>(std::move(message));
    Operation operation;
    operation.is_send = true;
    operation.peer = peer;
    operation.tag = kMessageTag;
    operation.data = keep->data();
    operation.bytes = keep->size();
    operation.keep = std::move(keep);
    ask(std::move(operation));
  }

  std::optional<nanoseconds> progress(const Arrived& arrived, bool awaited) override;

  bool sending_to(int peer) const override {
    const std::scoped_lock lock(mutex_);
    return sends_[static_cast<std::size_t>(peer)] != 0;
  }

 private:
  void ask(Operation operation);
  void start(Operation operation);
  bool listen(const Arrived& arrived);
  bool complete();
  void finish(Operation& operation);

  const MpiChannelOptions options_;
  const bool listens_;
  const comm::mpi::Communicator comm_;

  mutable std::mutex mutex_;
  std::vector<Operation> asked_; // guarded by mutex_
  // The number of sends to each peer that are queued or in flight; guarded by mutex_.
  std::vector<int> sends_;

  // Only the message thread uses these.
  std::vector<MPI_Request> requests_;
  std::vector<OperationPtr> operations_; // of each request
  std::vector<int> indices_;
  int idle_polls_ = 0;
  nanoseconds pause_ = kFirstPause;
  Deadline::Clock::time_point moved_ = Deadline::Clock::now();
};

void MpiChannel::ask(Operation operation) {
  {
    const std::scoped_lock lock(mutex_);
    if (operation.is_send) {
      ++sends_[static_cast<std::size_t>(operation.peer)];
    }
    asked_.push_back(std::move(operation));
  }
  options_.wake();
}

void MpiChannel::start(Operation operation) {
  const auto shared = std::make_shared<Operation>(std::move(operation));
  std::size_t at = 0;
  do {
    const std::size_t piece = std::min(shared->bytes - at, comm::mpi::kPieceBytes);
    MPI_Request request = MPI_REQUEST_NULL;
    const int count = static_cast<int>(piece);
    check_mpi(
        shared->is_send ? MPI_Isend(
                              shared->data + at,
                              count,
                              MPI_BYTE,
                              shared->peer,
                              shared->tag,
                              comm_.get(),
                              &request)
                        : MPI_Irecv(
                              shared->data + at,
                              count,
                              MPI_BYTE,
                              shared->peer,
                              shared->tag,
                              comm_.get(),
                              &request),
        str(shared->is_send ? "sending to" : "receiving from",
            " rank ",
            options_.ranks[static_cast<std::size_t>(shared->peer)]));
    requests_.push_back(request);
    operations_.push_back(shared);
    ++shared->requests_left;
    at += piece;
  } while (at < shared->bytes);
}

bool MpiChannel::listen(const Arrived& arrived) {
  bool any = false;
  for (;;) {
    int found = 0;
    MPI_Message handle = MPI_MESSAGE_NULL;
    MPI_Status status;
    check_mpi(
        MPI_Improbe(MPI_ANY_SOURCE, kMessageTag, comm_.get(), &found, &handle, &status),
        "looking for messages");
    if (found == 0) {
      return any;
    }
    any = true;
    int count = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
    std::vector<std::byte> message(static_cast<std::size_t>(count));
    // This receive blocks: the sender has begun, and its own message thread makes progress.
    check_mpi(
        MPI_Mrecv(message.data(), count, MPI_BYTE, &handle, &status),
        str("receiving a message from rank ",
            options_.ranks[static_cast<std::size_t>(status.MPI_SOURCE)]));
    arrived(status.MPI_SOURCE, std::move(message));
  }
}

void MpiChannel::finish(Operation& operation) {
  if (operation.done) {
    operation.done();
  }
  if (operation.is_send) {
    operation.keep.reset();
    const std::scoped_lock lock(mutex_);
    --sends_[static_cast<std::size_t>(operation.peer)];
  }
}

bool MpiChannel::complete() {
  if (requests_.empty()) {
    return false;
  }
  const int size = static_cast<int>(requests_.size());
  indices_.resize(requests_.size());
  int count = 0;
  check_mpi(
      MPI_Testsome(size, requests_.data(), &count, indices_.data(), MPI_STATUSES_IGNORE),
      "completing transfers");
  if (count <= 0) {
    return false;
  }
  for (int i = 0; i < count; ++i) {
    Operation& operation =
        *operations_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])];
    if (--operation.requests_left == 0) {
      finish(operation);
    }
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] != MPI_REQUEST_NULL) {
      requests_[kept] = requests_[i];
      operations_[kept] = std::move(operations_[i]);
      ++kept;
    }
  }
  requests_.resize(kept);
  operations_.resize(kept);
  return true;
}

std::optional<nanoseconds> MpiChannel::progress(const Arrived& arrived, bool awaited) {
  std::vector<Operation> asked;
  {
    const std::scoped_lock lock(mutex_);
    asked.swap(asked_);
  }
  bool moved = !asked.empty();
  for (auto& operation : asked) {
    start(std::move(operation));
  }
  moved = (listens_ && listen(arrived)) || moved;
  moved = complete() || moved;
  if (requests_.empty() && !listens_) {
    return std::nullopt;
  }
  if (moved) {
    idle_polls_ = 0;
    pause_ = kFirstPause;
    moved_ = Deadline::Clock::now();
  }
  if (options_.crowded) {
    const nanoseconds most = !requests_.empty() ? kCrowdedTransfer : kPauseListening;
    return std::clamp<nanoseconds>(
        (Deadline::Clock::now() - moved_) / kCrowdedShare, kCrowdedLeast, most);
  }
  if (++idle_polls_ <= kEagerPolls) {
    return nanoseconds{0};
  }
  const nanoseconds limit = !requests_.empty() ? kPauseTransfer
                            : awaited          ? kPauseAwaited
                                               : kPauseListening;
  const nanoseconds pause = std::min(pause_, limit);
  pause_ = std::min<nanoseconds>(pause_ * 2, kPauseListening);
  return pause;
}

MpiChannel::~MpiChannel() {
  if (!comm::mpi::mpi_is_running()) {
    return;
  }
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    MPI_Cancel(&requests_[i]);
    MPI_Request_free(&requests_[i]);
    // MPI may still touch the memory of what could not be cancelled, so that
    // is never freed. It only happens after a peer has gone.
    static_cast<void>(new OperationPtr(std::move(operations_[i])));
  }
}

} // namespace

std::unique_ptr<Channel> make_mpi_channel(MpiChannelOptions options) {
  if (!comm::mpi::mpi_is_running()) {
    throw CommError("make_transport needs MPI: its world must come from comm::mpi_world");
  }
  return std::make_unique<MpiChannel>(std::move(options));
}

} // namespace tessera::transport::mpi
