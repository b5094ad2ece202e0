#pragma once

#include <string>

#include "tessera/runtime/protocol.h"

namespace tessera::runtime {

struct Task;

/// The requests that the parts of a step make to the server that runs it.
/// Threads: whoever holds the baton.
class StepControl {
 public:
  virtual ~StepControl() = default;

  /// Called on a worker, from inside `task`: lets other tasks run until it is chosen again.
  virtual void pause() = 0;
  /// Does the same until the answer to a call is there. `rank` is the global rank of the module's
  /// owner.
  virtual void wait_for_answer(Task& task, const Fields& fields, int rank) = 0;
  /// Makes pp rank 0 end the step with this error, for all ranks. User code may catch an exception
  /// on its way; the step fails all the same.
  virtual void abort(std::string text) = 0;
  /// Returns whether the step was aborted, or has failed, on this rank.
  virtual bool aborted() const = 0;
};

} // namespace tessera::runtime
