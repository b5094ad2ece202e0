#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::schedule {

enum class Phase { kForward, kBackward };

/// Tells the root (pp rank 0) to start one phase of one microbatch.
struct Action {
  int microbatch = 0;
  Phase phase = Phase::kForward;
  bool operator==(const Action&) const = default;
};

/// The state of each microbatch at the root, as far as a schedule must know it.
struct Progress {
  enum class State {
    kWaiting, // forward not started
    kForward, // forward running
    kReady, // forward done, backward requested but not started
    kBackward, // backward running
    kDone // the step function returned (with or without a backward)
  };
  std::vector<State> states; // indexed by microbatch
};

/// Decides what the root starts next. A schedule is a pure function: the same progress gives the
/// same action, and it reads no clock and sends no message.
/// Source: Karakus et al. 2021, section 4.3.
class Schedule {
 public:
  Schedule() = default;
  virtual ~Schedule() = default;
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;
  Schedule(Schedule&&) = delete;
  Schedule& operator=(Schedule&&) = delete;
  /// Returns the action to start now, or nullopt when the root must wait for progress.
  virtual std::optional<Action> next(const Progress& progress) const = 0;
  /// Returns the position of each microbatch, from 0, in the order in which this schedule starts
  /// `phase` when all microbatches are equally fast.
  virtual std::vector<int> positions(Phase phase, int microbatches) const;
};

/// Makes a schedule; `kind` is "simple", "interleaved" or "custom".
/// - interleaved starts the lowest microbatch that is ready for its backward, else the next forward
///   while fewer than `active` microbatches are started and not done.
/// - simple starts every forward, then every backward, and runs at most `active` phases at one
///   time. The cap counts running phases, because all microbatches hold activations between the two
///   halves: a cap on started microbatches would never let the backwards begin.
/// - custom starts exactly `order`, which obeys validate_order. An action that cannot start yet
///   blocks those behind it. The backward of a microbatch that is done without one (an evaluation
///   step) is skipped.
/// Threads: any thread may call the result.
/// Throws: ConfigError that names what is wrong with the kind, the counts or the order.
std::unique_ptr<Schedule> make_schedule(
    const std::string& kind,
    int microbatches,
    int active,
    const std::vector<Action>& order = {});

/// Parses the text form of a custom schedule, "0F 1F 0B 1B". Any input is safe.
/// Throws: ConfigError naming the token, its position and the form.
std::vector<Action> parse_order(const std::string& text);
std::string to_text(const std::vector<Action>& order);

/// Checks that `order` starts the forward and the backward of every microbatch exactly once, each
/// backward after its forward, and that it cannot deadlock: no forward waits for a microbatch whose
/// backward comes later.
/// Throws: ConfigError naming the action and what to change.
void validate_order(const std::vector<Action>& order, int microbatches, int active);

} // namespace tessera::schedule
