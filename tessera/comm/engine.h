#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "tessera/comm/collective.h"

namespace tessera::comm {

/// Executes collectives on one group, one at a time, over some medium; what a
/// back end has to implement for tensors in host memory.
/// Threads: `run` and `recover` from one thread at a time, `abandon` and
/// `cancel` from any thread.
class Engine {
 public:
  virtual ~Engine() = default;

  /// Collective over the group. Sleeps while it waits. Sums run in the order of
  /// ranks, so that all engines give the same bits.
  /// Throws: CommError naming group, operation and the ranks that are missing
  /// once no progress was made for the group's timeout; PeerFailed when a rank
  /// has abandoned the operation.
  virtual void run(const Operation& operation) = 0;

  /// Does the engine's part of ProcessGroup::abandon. `started` is the number of operations that
  /// this rank had started by then.
  virtual void abandon(std::uint32_t started, const std::string& why) = 0;

  /// Does the engine's part of ProcessGroup::recover, while no operation is in progress. Afterwards
  /// no memory of an abandoned operation is used any more.
  /// Returns the number of operations that count as started from now on.
  virtual std::uint32_t recover() = 0;

  /// Returns whether all ranks of the group can map each other's memory.
  virtual bool shares_memory() const {
    return false;
  }

  /// Makes a `run` in progress, and every later one, throw soon.
  void cancel() {
    cancelled_.store(true);
  }

 protected:
  bool cancelled() const {
    return cancelled_.load();
  }

 private:
  std::atomic<bool> cancelled_{false};
};

} // namespace tessera::comm
