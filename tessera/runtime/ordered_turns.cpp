#include "tessera/runtime/ordered_turns.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/runtime/error_text.h"

namespace tessera::runtime {

LeaderTurns::LeaderTurns(const StepResources& resources)
    : DynamicTurns(resources), order_(*resources.context.order) {}

std::optional<Choice> LeaderTurns::next() {
  auto choice = DynamicTurns::next();
  if (choice) {
    order_.announce(serial_, choice->key);
  }
  return choice;
}

void LeaderTurns::step_ended(bool failed) {
  order_.announce_end(serial_, failed);
}

FollowerTurns::FollowerTurns(const StepResources& resources)
    : DynamicTurns(resources), order_(*resources.context.order), control_(resources.control) {}

// The leader's schedule decides, so a follower accepts every legal start.
std::vector<Choice> FollowerTurns::choices() const {
  using State = schedule::Progress::State;
  std::vector<Choice> choices = arrived();
  for (int i = 0; context_.root() && i < tasks_.microbatches(); ++i) {
    const State state = tasks_.progress.states[i];
    if (state == State::kWaiting || state == State::kReady) {
      add_root(i, choices);
    }
  }
  sort(choices);
  return choices;
}

std::optional<Choice> FollowerTurns::next() {
  if (!announced_ && !leader_ended_) {
    return std::nullopt;
  }
  const std::vector<Choice> all = choices();
  const auto chosen = std::find_if(all.begin(), all.end(), [this](const Choice& choice) {
    return announced_ && choice.key == *announced_;
  });
  if (chosen != all.end()) {
    announced_.reset();
    return *chosen;
  }
  if (!leader_ended_ || all.empty()) {
    return std::nullopt;
  }
  Choice refused = all.front();
  refused.refusal = refusal_of(refused);
  return refused;
}

TurnSource::Heard FollowerTurns::listen(std::chrono::milliseconds timeout) {
  if (announced_ || leader_ended_) {
    return Heard::kNotListening;
  }
  const auto order = order_.next(serial_, timeout);
  if (!order) {
    return Heard::kNothing;
  }
  if (!order->end) {
    announced_ = order->key;
    return Heard::kSomething;
  }
  // After a failure the follower only waits for the end of the step.
  leader_ended_ = !order->failed;
  if (order->failed && context_.root()) {
    control_.abort(
        str("rank ", order_.leader_rank(), ", which leads the order of tasks, gave the step up"));
  }
  return Heard::kSomething;
}

std::string FollowerTurns::refusal_of(const Choice& choice) const {
  return str(
      "the flow of modules differs between replicas: rank ",
      order_.leader_rank(),
      ", which leads the order of tasks, has finished the step, but rank ",
      context_.rank,
      " still has to run ",
      choice.task == nullptr ? str("the step function, microbatch ", choice.microbatch)
                             : task_text(choice.task->request, *context_.modules),
      "; with deterministic_server every replica must call the same modules in every step");
}

std::string FollowerTurns::order_text() const {
  const std::string leader = std::to_string(order_.leader_rank());
  return announced_
             ? ". It follows the order of rank " + leader + ", whose next task has not come here"
             : ". Rank " + leader + ", whose order it follows, announced nothing more";
}

} // namespace tessera::runtime
