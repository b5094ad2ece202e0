#include "tessera/comm/backends/mpi/transfers.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::comm::mpi {

template <typename Start>
void Transfers::start_pieces(int peer, bool receiving, std::size_t bytes, const Start& start) {
  if (peer == messages_.info().rank) {
    return;
  }
  std::size_t at = 0;
  do {
    const std::size_t piece = std::min(kPieceBytes, bytes - at);
    requests_.push_back(start(at, piece));
    list_.push_back({peer, receiving, piece});
    ++unfinished_;
    at += piece;
  } while (at < bytes);
}

void Transfers::send(int peer, const void* from, std::size_t bytes) {
  start_pieces(peer, false, bytes, [&](std::size_t at, std::size_t piece) {
    return messages_.send(peer, tag_, static_cast<const std::byte*>(from) + at, piece);
  });
}

void Transfers::receive(int peer, void* to, std::size_t bytes) {
  start_pieces(peer, true, bytes, [&](std::size_t at, std::size_t piece) {
    return messages_.receive(peer, tag_, static_cast<std::byte*>(to) + at, piece);
  });
}

bool Transfers::progress() {
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int finished = 0;
  const int code = MPI_Testsome(
      static_cast<int>(requests_.size()),
      requests_.data(),
      &finished,
      indices_.data(),
      statuses_.data());
  if (code == MPI_ERR_IN_STATUS) {
    for (int i = 0; i < finished; ++i) {
      check_mpi(statuses_[static_cast<std::size_t>(i)].MPI_ERROR, "a message of a collective");
    }
  }
  check_mpi(code, "the messages of a collective");
  for (std::size_t i = 0; i < static_cast<std::size_t>(std::max(finished, 0)); ++i) {
    finish(list_[static_cast<std::size_t>(indices_[i])], statuses_[i]);
  }
  return finished > 0;
}

void Transfers::finish(Message& message, const MPI_Status& status) {
  message.done = true;
  --unfinished_;
  if (!message.receiving) {
    return;
  }
  messages_.note_received(message.peer);
  int came = 0;
  MPI_Get_count(&status, MPI_BYTE, &came);
  if (static_cast<std::size_t>(came) != message.bytes) {
    throw CommError(
        str("rank ",
            messages_.info().ranks[static_cast<std::size_t>(message.peer)],
            " sent ",
            came,
            " bytes where ",
            message.bytes,
            " were expected; all ranks must make the same calls with equal sizes "
            "and dtypes"));
  }
}

std::string Transfers::missing() const {
  std::string text;
  for (const Message& message : list_) {
    if (!message.done) {
      text +=
          str(text.empty() ? "" : ", ",
              message.receiving ? "nothing came from rank " : "nothing was taken by rank ",
              messages_.info().ranks[static_cast<std::size_t>(message.peer)]);
    }
  }
  return text;
}

void Transfers::drop() {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) {
      continue;
    }
    if (!list_[i].receiving) {
      messages_.leave(requests_[i], nullptr);
      continue;
    }
    MPI_Status status;
    int cancelled = 0;
    MPI_Cancel(&requests_[i]);
    MPI_Wait(&requests_[i], &status);
    MPI_Test_cancelled(&status, &cancelled);
    if (cancelled == 0) { // it came before
      messages_.note_received(list_[i].peer);
    }
  }
}

} // namespace tessera::comm::mpi
