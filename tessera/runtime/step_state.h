#pragma once

#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/runtime/call_record.h"
#include "tessera/runtime/step_factory.h"

namespace tessera::runtime {

/// All that a rank knows of one step; made at its start and dropped at its end.
/// Threads: whoever holds the baton.
struct StepState {
  /// `context` and `work` outlive it. `buffer_order` is nullptr where changes of buffers have no
  /// order.
  StepState(
      const ServerContext& context,
      const StepWork& work,
      StepControl& control,
      BufferOrder* buffer_order);

  /// Records an error; the first one is the step's.
  void fail(std::string text) {
    if (!failure) {
      failure = std::move(text);
    }
  }
  /// Called at the end of each turn, and before its results leave the rank.
  void turn_ended(const Task& task) {
    if (turns->turn_ended(task) && observer != nullptr) {
      observer->changed_buffers(task);
    }
  }

  const StepWork& work;
  Fields caller_modes; // grad mode and autocast of run_step's caller
  StepTasks tasks;
  std::unordered_map<std::uint64_t, CallRecord> records; // by call: forwards of this rank
  std::vector<c10::IValue> results; // of the step function, by microbatch

  /// The state that the generator gets when the step ends; when empty, the generator is left as it
  /// is.
  std::optional<RandomState> random_after;
  std::unique_ptr<ScriptStream> script_stream; // nullptr: tasks have streams of their own

  std::unique_ptr<Exchange> exchange;
  std::unique_ptr<TurnSource> turns;
  std::unique_ptr<TurnObserver> observer;

  bool ended = false; // pp rank 0 has said so
  bool aborted = false; // pp rank 0 was asked to end the step
  std::optional<std::string> failure;
  /// The error of a task whose caller already had its answer; the step may have ended on that rank.
  std::optional<std::string> failed_late;
  std::exception_ptr error; // of a choice on a worker, for run_step's caller
  std::chrono::steady_clock::time_point last_heard = std::chrono::steady_clock::now();
};

} // namespace tessera::runtime
