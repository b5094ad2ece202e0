#include "tessera/comm/backends/mpi/peer_messages.h"

#include <utility>

namespace tessera::comm::mpi {

PeerMessages::PeerMessages(const GroupInfo& info, MPI_Comm comm)
    : info_(info), comm_(comm), sent_(info.ranks.size()), received_(info.ranks.size()) {}

PeerMessages::~PeerMessages() {
  if (!left_.empty()) { // MPI may still use their memory
    static_cast<void>(new std::vector<Left>(std::move(left_)));
  }
}

MPI_Request PeerMessages::send(int peer, int tag, const void* data, std::size_t bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(
      MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_.get(), &request),
      "sending to a rank of the group");
  ++sent_[static_cast<std::size_t>(peer)];
  return request;
}

MPI_Request PeerMessages::receive(int peer, int tag, void* into, std::size_t bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(
      MPI_Irecv(into, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_.get(), &request),
      "receiving from a rank of the group");
  return request;
}

void PeerMessages::note_received(int peer) {
  ++received_[static_cast<std::size_t>(peer)];
}

void PeerMessages::leave(MPI_Request request, std::shared_ptr<const void> keep) {
  const std::lock_guard lock(mutex_);
  left_.push_back({request, std::move(keep)});
}

void PeerMessages::complete(
    MPI_Request request,
    const char* what,
    const std::function<void()>& pause,
    const std::shared_ptr<const void>& keep) {
  while (true) {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what);
    if (done != 0) {
      return;
    }
    try {
      pause();
    } catch (...) {
      leave(request, keep);
      throw;
    }
  }
}

void PeerMessages::drain(const std::function<void()>& pause) {
  constexpr const char* kWhat = "counting messages after a failed step";
  using Counts = std::vector<std::uint64_t>;
  const auto counts = std::make_shared<std::pair<Counts, Counts>>();
  auto& [sent, expected] = *counts;
  sent.assign(sent_.begin(), sent_.end());
  expected.resize(sent.size());
  MPI_Request request = MPI_REQUEST_NULL;
  // MPI's own collectives do not meet our messages.
  check_mpi(
      MPI_Ialltoall(
          sent.data(), 1, MPI_UINT64_T, expected.data(), 1, MPI_UINT64_T, comm_.get(), &request),
      kWhat);
  complete(request, kWhat, pause, counts);
  for (int peer = 0; peer < info_.size(); ++peer) {
    drop_messages_of(peer, expected[static_cast<std::size_t>(peer)], pause);
  }
  std::vector<Left> left;
  {
    const std::lock_guard lock(mutex_);
    left.swap(left_);
  }
  for (const Left& send : left) {
    complete(send.request, "ending a send of a failed step", pause, send.keep);
  }
}

void PeerMessages::drop_messages_of(
    int peer,
    std::uint64_t expected,
    const std::function<void()>& pause) {
  constexpr const char* kWhat = "dropping a message of a failed step";
  const auto dropped = std::make_shared<std::vector<std::byte>>();
  while (received_[static_cast<std::size_t>(peer)].load() < expected) {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check_mpi(MPI_Improbe(peer, MPI_ANY_TAG, comm_.get(), &found, &message, &status), kWhat);
    if (found == 0) {
      pause();
      continue;
    }
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    dropped->resize(static_cast<std::size_t>(bytes));
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Imrecv(dropped->data(), bytes, MPI_BYTE, &message, &request), kWhat);
    complete(request, kWhat, pause, dropped);
    note_received(peer);
  }
}

} // namespace tessera::comm::mpi
