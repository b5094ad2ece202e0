#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>

#include "tessera/runtime/server_context.h"
#include "tessera/runtime/step_tasks.h"

namespace tessera::runtime {

/// "it waits for module 'h.3' on rank 2 (for module 'h', microbatch 0, forward)"; empty when no
/// task waits for a response or the schedule.
std::string waiting_text(const StepTasks& tasks, const ModuleDirectory& modules);

/// Publishes what this rank waits for, so that the other ranks of its node can report it if this
/// one hangs or dies.
void publish_wait(const StepTasks& tasks, std::int64_t step, const ModuleDirectory& modules);

/// Asks the other ranks of a pipeline what they wait for: the rank that waits too long may itself
/// wait for the one at fault.
/// Not collective. Threads: whoever holds the baton.
class StallInquiry {
 public:
  /// `context` outlives it.
  explicit StallInquiry(const ServerContext& context) : context_(context) {}

  /// Waits about a second for the answers and passes every message that comes meanwhile to `take`.
  std::string ask_others(const std::function<void(transport::Parcel)>& take);
  /// Takes a message of kind kState.
  void take_answer(const transport::Parcel& parcel);
  /// Answers a message of kind kProbe.
  void answer(int rank, std::string state) const;

 private:
  const ServerContext& context_;
  std::map<int, std::string> answers_; // by global rank
};

} // namespace tessera::runtime
