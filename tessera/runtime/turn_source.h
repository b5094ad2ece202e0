#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "tessera/runtime/step_tasks.h"

namespace tessera::runtime {

/// Decides which task of a step has the next turn on this rank.
///
/// Three rules are implemented: what has arrived and the schedule (dynamic_turns.h), the order of
/// a leading replica (ordered_turns.h), a recorded order (replay/replayed_turns.h).
/// Not collective. Threads: whoever holds the baton.
class TurnSource {
 public:
  enum class Heard { kNotListening, kNothing, kSomething };

  virtual ~TurnSource() = default;

  /// Returns the turn that begins now; nullopt when none can before another message has come.
  virtual std::optional<Choice> next() = 0;
  /// Called between two parts of a backward for which no other rank waits: returns a turn that can
  /// begin now and that another rank waits for, so that it is had first. Interrupted tasks
  /// (Task::gave_way) go on with the same turn, which `next` returns again.
  virtual std::optional<Choice> awaited() {
    return std::nullopt;
  }
  /// pp rank 0: returns whether the step needs no further turn on any rank.
  virtual bool done() const = 0;

  /// Called when there is no turn: waits for what comes to this source past the server's
  /// transport. kNotListening: only messages of the pipeline can help.
  virtual Heard listen(std::chrono::milliseconds /*timeout*/) {
    return Heard::kNotListening;
  }
  /// Returns whether a choice may need the server thread, so that a worker must not make it.
  virtual bool on_server_thread_only() const {
    return false;
  }
  /// Takes a message of kind kDone or kForwardEnded.
  virtual void take(const Fields& /*fields*/) {}

  /// Called at the end of each turn, and before its results leave the rank; a second call changes
  /// nothing.
  /// Returns whether the turn changed a buffer whose changes have an order.
  /// Throws: UserError, see BufferOrder::turn_ends.
  virtual bool turn_ended(const Task& /*task*/) {
    return false;
  }
  /// pp rank 0: called when the microbatch calls no module forward any more.
  virtual void forward_ended(int /*microbatch*/) {}
  /// Called when a task has returned. Throws: UserError when it should have had more turns, or
  /// fewer.
  virtual void check_finished(const Task& /*task*/) const {}
  /// Called when the step has completed on this rank.
  virtual void completed() {}
  /// Called when the step has ended; nothing more is chosen.
  virtual void step_ended(bool /*failed*/) {}

  /// Returns, for people, what this rank waits for while none of its tasks waits; empty for
  /// requests.
  virtual std::string waits_for() const {
    return {};
  }
  /// Returns, for people, whose order this rank follows; messages append it to what the rank waits
  /// for.
  virtual std::string order_text() const {
    return {};
  }
};

/// Sees each turn that begins.
class TurnObserver {
 public:
  virtual ~TurnObserver() = default;
  /// Called before `task.turns` counts this turn.
  virtual void began(const Task& task, bool resumed) = 0;
  /// Called when the turn that runs changed a buffer whose changes have an order.
  virtual void changed_buffers(const Task& task) = 0;
};

} // namespace tessera::runtime
