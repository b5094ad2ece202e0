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

  /// The turn that begins now; nullopt: none can before another message has come.
  virtual std::optional<Choice> next() = 0;
  /// pp rank 0: the step needs no further turn on any rank.
  virtual bool done() const = 0;

  /// Called when there is no turn: waits for what comes to this source past the server's
  /// transport. kNotListening: only messages of the pipeline can help.
  virtual Heard listen(std::chrono::milliseconds /*timeout*/) {
    return Heard::kNotListening;
  }
  /// A choice may need the server thread, so a worker must not make it.
  virtual bool on_server_thread_only() const {
    return false;
  }
  /// A message of kind kDone or kForwardEnded.
  virtual void take(const Fields& /*fields*/) {}

  /// At the end of each turn, and before its results leave the rank; a second call changes nothing.
  /// Returns whether the turn changed a buffer whose changes have an order.
  /// Throws: UserError, see BufferOrder::turn_ends.
  virtual bool turn_ended(const Task& /*task*/) {
    return false;
  }
  /// pp rank 0: the microbatch calls no module forward any more.
  virtual void forward_ended(int /*microbatch*/) {}
  /// A task has returned. Throws: UserError when it should have had more turns, or fewer.
  virtual void check_finished(const Task& /*task*/) const {}
  /// The step was whole on this rank.
  virtual void completed() {}
  /// The step has ended; nothing more is chosen.
  virtual void step_ended(bool /*failed*/) {}

  /// For people: what this rank waits for while none of its tasks waits; empty: requests.
  virtual std::string waits_for() const {
    return {};
  }
  /// For people: whose order this rank follows, to stand behind what it waits for.
  virtual std::string order_text() const {
    return {};
  }
};

/// Sees each turn that begins.
class TurnObserver {
 public:
  virtual ~TurnObserver() = default;
  /// Before `task.turns` counts this turn.
  virtual void began(const Task& task, bool resumed) = 0;
  /// The turn that runs changed a buffer whose changes have an order.
  virtual void changed_buffers(const Task& task) = 0;
};

} // namespace tessera::runtime
