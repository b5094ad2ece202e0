#include "tessera/comm/backends/mpi/messenger.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <utility>

#include "tessera/comm/backends/mpi/check.h"
#include "tessera/comm/backoff.h"
#include "tessera/diagnostics/activity.h"

namespace tessera::comm::mpi {

namespace {

constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);

} // namespace

struct Messenger::Outgoing {
  std::vector<std::byte> bytes;
  std::vector<MPI_Request> requests;
};

Messenger::Messenger(MPI_Comm comm, std::chrono::milliseconds timeout)
    : comm_(comm), timeout_(timeout) {}

Messenger::~Messenger() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    give_up_ = std::uncaught_exceptions() > 0;
  }
  wake_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
  for (OutgoingPtr& message : outgoing_) {
    // MPI may still read a message that no receiver has taken.
    static_cast<void>(message.release());
  }
}

void Messenger::send(int peer, int tag, std::vector<std::byte> bytes) {
  auto message = std::make_unique<Outgoing>();
  const std::uint64_t length = bytes.size();
  message->bytes = std::move(bytes);
  // The length goes first, so that the receiver knows how many pieces follow.
  message->bytes.resize(message->bytes.size() + kLengthBytes);
  std::memmove(message->bytes.data() + kLengthBytes, message->bytes.data(), length);
  std::memcpy(message->bytes.data(), &length, kLengthBytes);
  {
    const std::lock_guard lock(send_mutex_);
    for (std::size_t at = 0; at < message->bytes.size(); at += kPieceBytes) {
      const std::size_t piece = std::min(kPieceBytes, message->bytes.size() - at);
      message->requests.push_back(MPI_REQUEST_NULL);
      check_mpi(
          MPI_Isend(
              message->bytes.data() + at,
              static_cast<int>(piece),
              MPI_BYTE,
              peer,
              tag,
              comm_,
              &message->requests.back()),
          str("sending an object to rank ", peer));
    }
  }
  if (is_done(*message)) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    outgoing_.push_back(std::move(message));
    if (!thread_.joinable()) {
      thread_ = std::thread([this] { push_on(); });
    }
  }
  wake_.notify_all();
}

bool Messenger::is_done(Outgoing& message) {
  int done = 0;
  check_mpi(
      MPI_Testall(
          static_cast<int>(message.requests.size()),
          message.requests.data(),
          &done,
          MPI_STATUSES_IGNORE),
      "sending an object");
  return done != 0;
}

void Messenger::push_on() {
  std::unique_lock lock(mutex_);
  Backoff backoff(timeout_);
  while (true) {
    if (outgoing_.empty()) {
      if (stopping_) {
        return;
      }
      wake_.wait(lock, [this] { return stopping_ || !outgoing_.empty(); });
      backoff.restart();
      continue;
    }
    if (!mpi_is_running() || (stopping_ && (give_up_ || backoff.expired()))) {
      return;
    }
    if (push_once()) {
      backoff.restart();
      continue;
    }
    lock.unlock();
    backoff.pause();
    lock.lock();
  }
}

/// Tests every message once; returns true when one has been sent. The caller holds `mutex_`.
bool Messenger::push_once() {
  const auto is_gone = [](OutgoingPtr& message) {
    try {
      return is_done(*message);
    } catch (const CommError&) {
      // The receiver's wait names this rank; nobody waits for a send.
      static_cast<void>(message.release());
      return true;
    }
  };
  return outgoing_.remove_if(is_gone) != 0;
}

std::vector<std::byte> Messenger::receive(int peer, int tag) {
  auto bytes = std::make_unique<std::vector<std::byte>>();
  std::size_t received = 0;
  Backoff backoff(timeout_);
  diagnostics::Wait wait;
  while (received == 0 || received < bytes->size()) {
    const std::size_t piece = receive_piece(peer, tag, bytes, received, backoff, wait);
    if (received == 0) {
      std::uint64_t length = 0;
      std::memcpy(&length, bytes->data(), kLengthBytes);
      bytes->resize(kLengthBytes + length);
    }
    received += piece;
  }
  bytes->erase(bytes->begin(), bytes->begin() + kLengthBytes);
  return std::move(*bytes);
}

std::size_t Messenger::receive_piece(
    int peer,
    int tag,
    std::unique_ptr<std::vector<std::byte>>& bytes,
    std::size_t at,
    Backoff& backoff,
    diagnostics::Wait& wait) {
  const auto check = [&](int code) {
    if (code != MPI_SUCCESS) {
      check_mpi(code, str("receiving an object from rank ", peer));
    }
  };
  int done = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  while (check(MPI_Improbe(peer, tag, comm_, &done, &message, &status)), done == 0) {
    pause(peer, tag, "waiting for it", backoff, wait);
  }
  backoff.restart();
  int piece = 0;
  MPI_Get_count(&status, MPI_BYTE, &piece);
  bytes->resize(std::max(bytes->size(), at + static_cast<std::size_t>(piece)));
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Imrecv(bytes->data() + at, piece, MPI_BYTE, &message, &request));
  while (check(MPI_Test(&request, &done, MPI_STATUS_IGNORE)), done == 0) {
    if (backoff.expired()) {
      // MPI may still write there, so the memory is lost with the message.
      static_cast<void>(bytes.release());
    }
    pause(peer, tag, "receiving its bytes", backoff, wait);
  }
  backoff.restart();
  return static_cast<std::size_t>(piece);
}

void Messenger::pause(
    int peer,
    int tag,
    const char* doing,
    Backoff& backoff,
    diagnostics::Wait& wait) const {
  const std::string why =
      wait.in_vain(peer, [&] { return str("an object from rank ", peer, " (tag ", tag, ")"); });
  if (!why.empty()) {
    throw CommError(
        str("no object will come from rank ",
            peer,
            " (tag ",
            tag,
            "), ",
            why,
            diagnostics::activity::of_node()));
  }
  if (backoff.expired()) {
    throw CommError(
        str("no object came from rank ",
            peer,
            " (tag ",
            tag,
            ") within ",
            timeout_.count(),
            " ms while ",
            doing,
            diagnostics::activity::of_node()));
  }
  backoff.pause();
}

} // namespace tessera::comm::mpi
