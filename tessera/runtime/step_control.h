#pragma once

#include <string>

#include "tessera/runtime/protocol.h"

namespace tessera::runtime {

struct Task;

/// What the parts of a step ask of the server that runs it.
/// Threads: whoever holds the baton.
class StepControl {
 public:
  virtual ~StepControl() = default;

  /// On a worker, from inside `task`: other tasks run until it is chosen again.
  virtual void pause() = 0;
  /// The same until the answer to a call is there. `rank`: global, of the module's owner.
  virtual void wait_for_answer(Task& task, const Fields& fields, int rank) = 0;
  /// pp rank 0 is to end the step with this error, for all ranks. User code may catch an exception
  /// on its way; the step fails all the same.
  virtual void abort(std::string text) = 0;
  /// The step was aborted, or has failed, on this rank.
  virtual bool aborted() const = 0;
};

} // namespace tessera::runtime
