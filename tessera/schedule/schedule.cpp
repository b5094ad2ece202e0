#include "tessera/schedule/schedule.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"

namespace tessera::schedule {

namespace {

using State = Progress::State;

int count(const Progress& progress, State state) {
  return static_cast<int>(std::count(progress.states.begin(), progress.states.end(), state));
}

// Returns the lowest microbatch in this state, or -1.
int lowest(const Progress& progress, State state) {
  const auto found = std::find(progress.states.begin(), progress.states.end(), state);
  return found == progress.states.end() ? -1 : static_cast<int>(found - progress.states.begin());
}

int started_and_not_done(const Progress& progress) {
  return count(progress, State::kForward) + count(progress, State::kReady) +
         count(progress, State::kBackward);
}

std::optional<Action> start(int microbatch, Phase phase) {
  return microbatch < 0 ? std::nullopt : std::optional(Action{microbatch, phase});
}

class Counted : public Schedule {
 public:
  Counted(int microbatches, int active) : microbatches_(microbatches), active_(active) {}

  std::optional<Action> next(const Progress& progress) const final {
    TESSERA_CHECK(
        static_cast<int>(progress.states.size()) == microbatches_,
        progress.states.size(),
        " states for ",
        microbatches_,
        " microbatches");
    return choose(progress);
  }

 protected:
  int active() const {
    return active_;
  }

 private:
  virtual std::optional<Action> choose(const Progress& progress) const = 0;

  int microbatches_;
  int active_;
};

class Simple : public Counted {
  using Counted::Counted;

  std::optional<Action> choose(const Progress& progress) const override {
    const int forwards = count(progress, State::kForward);
    const int running = forwards + count(progress, State::kBackward);
    if (running >= active()) {
      return std::nullopt;
    }
    const int waiting = lowest(progress, State::kWaiting);
    if (waiting >= 0) {
      return start(waiting, Phase::kForward);
    }
    // No backward starts before the last forward has ended.
    return forwards > 0 ? std::nullopt : start(lowest(progress, State::kReady), Phase::kBackward);
  }
};

class Interleaved : public Counted {
  using Counted::Counted;

  std::optional<Action> choose(const Progress& progress) const override {
    const int ready = lowest(progress, State::kReady);
    if (ready >= 0) {
      return start(ready, Phase::kBackward);
    }
    return started_and_not_done(progress) >= active()
               ? std::nullopt
               : start(lowest(progress, State::kWaiting), Phase::kForward);
  }
};

class Custom : public Counted {
 public:
  std::vector<int> positions(Phase phase, int microbatches) const override {
    std::vector<int> places(static_cast<std::size_t>(microbatches), 0);
    int next = 0;
    for (const Action& action : order_) {
      if (action.phase == phase) {
        places.at(static_cast<std::size_t>(action.microbatch)) = next++;
      }
    }
    return places;
  }

  Custom(int microbatches, int active, std::vector<Action> order)
      : Counted(microbatches, active), order_(std::move(order)) {}

 private:
  // The states alone say which actions were started, so no place in the order
  // has to be remembered.
  std::optional<Action> choose(const Progress& progress) const override {
    for (const Action& action : order_) {
      const State state = progress.states[static_cast<std::size_t>(action.microbatch)];
      if (action.phase == Phase::kForward) {
        if (state == State::kWaiting) {
          return started_and_not_done(progress) >= active() ? std::nullopt : std::optional(action);
        }
      } else if (state == State::kReady) {
        return action;
      } else if (state == State::kForward) {
        return std::nullopt;
      }
    }
    return std::nullopt;
  }

  std::vector<Action> order_;
};

} // namespace

std::vector<int> Schedule::positions(Phase /*phase*/, int microbatches) const {
  std::vector<int> places(static_cast<std::size_t>(microbatches));
  std::iota(places.begin(), places.end(), 0);
  return places;
}

std::unique_ptr<Schedule> make_schedule(
    const std::string& kind,
    int microbatches,
    int active,
    const std::vector<Action>& order) {
  if (microbatches < 1 || active < 1) {
    throw ConfigError(
        str("microbatches and active_microbatches must be at least 1; found ",
            microbatches,
            " and ",
            active));
  }
  if (kind == "custom") {
    validate_order(order, microbatches, active);
    return std::make_unique<Custom>(microbatches, active, order);
  }
  if (kind != "simple" && kind != "interleaved") {
    throw ConfigError(
        str("pipeline: found \"", kind, "\"; write \"interleaved\", \"simple\" or \"custom\""));
  }
  if (!order.empty()) {
    throw ConfigError(
        str("an order of ",
            order.size(),
            " actions is given but pipeline is \"",
            kind,
            "\"; write \"custom\" or leave custom_schedule out"));
  }
  if (kind == "simple") {
    return std::make_unique<Simple>(microbatches, active);
  }
  return std::make_unique<Interleaved>(microbatches, active);
}

} // namespace tessera::schedule
