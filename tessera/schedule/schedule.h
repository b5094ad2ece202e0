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
  virtual ~Schedule() = default;
  /// nullopt: nothing may start now, wait for progress.
  virtual std::optional<Action> next(const Progress& progress) const = 0;
};

/// `kind` is "simple", "interleaved" or "custom" (then `order` holds every
/// microbatch once forward and at most once backward, backward after forward).
/// `active` caps the microbatches that are started and not done (for "simple":
/// whose forward is running, since all forwards precede the first backward).
/// Throws: ConfigError that names what is wrong with the order.
std::unique_ptr<Schedule> make_schedule(
    const std::string& kind,
    int microbatches,
    int active,
    const std::vector<Action>& order = {});

/// Text form of a custom schedule: "0F 1F 0B 1B".
std::vector<Action> parse_order(const std::string& text);
std::string to_text(const std::vector<Action>& order);

} // namespace tessera::schedule
