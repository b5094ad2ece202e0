#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <mpi.h>

#include "tessera/comm/backoff.h"
#include "tessera/diagnostics/wait.h"

namespace tessera::comm::mpi {

/// Passes byte strings of any length between ranks, matched by (source, tag) in order. `send` never
/// waits: a thread makes progress on what MPI has not taken yet, and sleeps while there is nothing
/// to do.
/// Not collective. Threads: any thread; one receiver at a time for each
/// (source, tag).
class Messenger {
 public:
  Messenger(MPI_Comm comm, std::chrono::milliseconds timeout);
  /// Waits (up to the timeout) until what was sent has been taken.
  ~Messenger();

  void send(int peer, int tag, std::vector<std::byte> bytes);
  /// Throws: CommError naming the peer when nothing comes in time.
  std::vector<std::byte> receive(int peer, int tag);

 private:
  struct Outgoing;
  using OutgoingPtr = std::unique_ptr<Outgoing>;

  void push_on();
  bool push_once();
  /// Receives a piece of a message into `bytes` from position `at` on; returns its size.
  std::size_t receive_piece(
      int peer,
      int tag,
      std::unique_ptr<std::vector<std::byte>>& bytes,
      std::size_t at,
      Backoff& backoff,
      diagnostics::Wait& wait);
  void pause(int peer, int tag, const char* doing, Backoff& backoff, diagnostics::Wait& wait) const;
  static bool is_done(Outgoing& message);

  MPI_Comm comm_;
  std::chrono::milliseconds timeout_;
  std::mutex send_mutex_; // keeps the pieces of a message together
  std::mutex mutex_;
  std::condition_variable wake_;
  std::list<OutgoingPtr> outgoing_; // guarded by mutex_
  bool stopping_ = false; // guarded by mutex_
  bool give_up_ = false; // guarded by mutex_
  std::thread thread_; // guarded by mutex_
};

} // namespace tessera::comm::mpi
