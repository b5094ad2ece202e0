#pragma once

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "tessera/schedule/schedule.h"

#include "tests/mpi/runtime/support.h"

/// How a step comes about, seen from the script: which phase starts when on pp rank 0.
namespace tessera::testing {

using schedule::Action;
using schedule::Phase;

inline void sleep_ms(double milliseconds) {
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
}

/// What pp rank 0 saw of a step. One thread of a rank runs at a time, so nothing is locked.
struct Watch {
  std::vector<Action> starts;
  std::set<int> running; // a phase has started and has not ended
  std::set<int> ready; // the forward has ended, the backward has not started
  std::set<int> open; // the forward has started, the microbatch has not ended
  std::size_t most_running = 0;
  std::size_t most_open = 0;
  std::vector<std::string> broken; // rules of the schedule, where looked for

  void began(int microbatch, Phase phase) {
    starts.push_back({microbatch, phase});
    running.insert(microbatch);
    open.insert(microbatch);
    ready.erase(microbatch);
    most_running = std::max(most_running, running.size());
    most_open = std::max(most_open, open.size());
  }
  void forward_ended(int microbatch) {
    running.erase(microbatch);
    ready.insert(microbatch);
  }
  void ended(int microbatch) {
    running.erase(microbatch);
    open.erase(microbatch);
  }
};

/// Runs one microbatch of a training step under `watch`; `number` holds its number, and `forward`
/// returns its loss. `at_start(phase)` runs before a start is noted.
template <typename Model, typename Forward, typename AtStart>
torch::Tensor watched(
    const Model& model,
    Watch& watch,
    const torch::Tensor& number,
    const Forward& forward,
    const AtStart& at_start) {
  const int microbatch = number[0].item<int>();
  if (is_tracing()) {
    return forward();
  }
  at_start(microbatch, Phase::kForward);
  watch.began(microbatch, Phase::kForward);
  torch::Tensor loss = forward();
  // The first act of the backward, which the schedule starts.
  loss.register_hook([&](const torch::Tensor& gradient) {
    at_start(microbatch, Phase::kBackward);
    watch.began(microbatch, Phase::kBackward);
    return gradient;
  });
  watch.forward_ended(microbatch);
  model.backward(loss);
  watch.ended(microbatch);
  return loss.detach();
}

/// The numbers of the microbatches, which a step cuts into one each.
inline torch::Tensor numbers_of(int microbatches) {
  return torch::arange(microbatches);
}

} // namespace tessera::testing
