#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::schedule {

enum class Phase { kForward, kBackward };

/// Start one phase of one microbatch at the root (pp rank 0).
struct Action {
  int microbatch = 0;
  Phase phase = Phase::kForward;
  bool operator==(const Action&) const = default;
};

/// Where each microbatch stands at the root, as far as the schedule must know.
struct Progress {
  enum class State {
    kWaiting, // forward not started
    kForward, // forward running
    kReady, // forward done, backward asked for, not started
    kBackward, // backward running
    kDone // the step function returned (with or without a backward)
  };
  std::vector<State> states; // one a microbatch
};

/// Decides what the root starts next. Pure: the same progress gives the same
/// answer; holds no clock and no communication.
/// Source: Karakus et al. 2021, section 4.3.
class Schedule {
 public:
  Schedule() = default;
  virtual ~Schedule() = default;
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;
  Schedule(Schedule&&) = delete;
  Schedule& operator=(Schedule&&) = delete;
  /// nullopt: nothing may start now, wait for progress.
  virtual std::optional<Action> next(const Progress& progress) const = 0;
  /// For each microbatch its place, from 0, in the order in which this schedule
  /// starts them when each is as fast as the others.
  virtual std::vector<int> positions(Phase phase, int microbatches) const;
};

/// `kind` is "simple", "interleaved" or "custom".
/// interleaved: the lowest microbatch that is ready for its backward, else the
///   next forward while fewer than `active` are started and not done.
/// simple: every forward, then every backward; at most `active` of them run at
///   one time. (All microbatches hold activations between the two halves, so a
///   cap on those that are started would never let the backwards begin.)
/// custom: exactly `order`, each action when it can start; what cannot start
///   yet holds up what follows. `order` obeys validate_order. The backward of a
///   microbatch that is done without one (an evaluation step) is passed over.
/// Threads: the result may be asked from any thread.
/// Throws: ConfigError that names what is wrong with the kind, the counts or
/// the order.
std::unique_ptr<Schedule> make_schedule(
    const std::string& kind,
    int microbatches,
    int active,
    const std::vector<Action>& order = {});

/// Text form of a custom schedule: "0F 1F 0B 1B". Any bytes are safe.
/// Throws: ConfigError naming the token, its place and the form.
std::vector<Action> parse_order(const std::string& text);
std::string to_text(const std::vector<Action>& order);

/// Checks that `order` starts the forward and the backward of every microbatch
/// exactly once, each backward after its forward, and that it cannot stand
/// still: no forward waits for a microbatch whose backward comes later.
/// Throws: ConfigError naming the action and what to change.
void validate_order(const std::vector<Action>& order, int microbatches, int active);

} // namespace tessera::schedule
