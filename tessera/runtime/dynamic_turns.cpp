#include "tessera/runtime/dynamic_turns.h"

#include <algorithm>
#include <tuple>

#include "tessera/runtime/stream_seed.h"

namespace tessera::runtime {

namespace {

using State = schedule::Progress::State;

Choice choice_of(std::shared_ptr<Task> task, Worker* worker, Phase phase) {
  Choice choice;
  choice.worker = worker;
  choice.microbatch = task->request.microbatch;
  choice.phase = phase;
  choice.key = mix(task->id, task->turns);
  choice.task = std::move(task);
  return choice;
}

/// Returns whether another rank waits for the turn.
bool is_awaited(const Choice& choice) {
  if (choice.task == nullptr || choice.task->gave_way) {
    return false; // the start of a step function, or what was interrupted
  }
  const bool starts = !choice.resumes() || choice.task->awaits == 0; // by a request, the schedule
  return starts || choice.phase == Phase::kForward || choice.task->awaited;
}

} // namespace

DynamicTurns::DynamicTurns(const StepResources& resources)
    : context_(resources.context),
      tasks_(resources.tasks),
      serial_(resources.work.serial),
      buffer_order_(resources.buffer_order) {
  if (buffer_order_ != nullptr) {
    buffer_order_->begin(
        resources.work.kind,
        context_.schedule->positions(Phase::kForward, resources.work.microbatches));
  }
}

std::optional<Choice> DynamicTurns::next() {
  if (tasks_.interrupted() != nullptr) {
    if (auto choice = awaited()) {
      return choice;
    }
  }
  std::vector<Choice> choices = arrived();
  add_scheduled(choices);
  return best(std::move(choices));
}

std::optional<Choice> DynamicTurns::awaited() {
  if (context_.order != nullptr) {
    return std::nullopt;
  }
  std::vector<Choice> choices = arrived();
  add_scheduled(choices);
  std::erase_if(choices, [](const Choice& choice) { return !is_awaited(choice); });
  return best(std::move(choices));
}

std::optional<Choice> DynamicTurns::best(std::vector<Choice> choices) const {
  std::erase_if(choices, [this](const Choice& choice) { return !may_start(choice); });
  if (choices.empty()) {
    return std::nullopt;
  }
  sort(choices);
  return choices.front();
}

std::vector<Choice> DynamicTurns::arrived() const {
  std::vector<Choice> choices;
  for (const auto& [worker, task] : tasks_.suspended) {
    if (task->response || task->gave_way) {
      choices.push_back(choice_of(task, worker, task->request.phase));
    }
  }
  for (const auto& task : tasks_.ready) {
    choices.push_back(choice_of(task, nullptr, task->request.phase));
  }
  return choices;
}

void DynamicTurns::add_scheduled(std::vector<Choice>& choices) const {
  const auto action = context_.root() ? context_.schedule->next(tasks_.progress) : std::nullopt;
  if (!action) {
    return;
  }
  // Until a step has shown which parts of a forward change buffers, any of them may.
  const bool alone =
      action->phase == Phase::kForward && buffer_order_ != nullptr && !buffer_order_->known();
  const auto& states = tasks_.progress.states;
  if (!alone || std::find(states.begin(), states.end(), State::kForward) == states.end()) {
    add_root(action->microbatch, choices);
  }
}

void DynamicTurns::add_root(int microbatch, std::vector<Choice>& choices) const {
  if (tasks_.progress.states.at(microbatch) == State::kWaiting) {
    Choice choice;
    choice.microbatch = microbatch;
    choice.key = mix(step_function_id(microbatch), 0);
    choices.push_back(std::move(choice));
    return;
  }
  if (const SuspendedTask* held = tasks_.find_suspended(step_function_id(microbatch))) {
    choices.push_back(choice_of(held->task, held->worker, Phase::kBackward));
  }
}

void DynamicTurns::sort(std::vector<Choice>& choices) {
  const auto rank = [](const Choice& choice) {
    return std::make_tuple(
        choice.phase != Phase::kBackward, choice.microbatch, !choice.resumes(), choice.key);
  };
  std::sort(choices.begin(), choices.end(), [&](const Choice& a, const Choice& b) {
    return rank(a) < rank(b);
  });
}

bool DynamicTurns::may_start(const Choice& choice) const {
  if (buffer_order_ == nullptr || choice.phase == Phase::kBackward) {
    return true;
  }
  BufferOrder::TurnId turn{step_function_id(choice.microbatch), 0};
  if (choice.task != nullptr) {
    turn = {choice.task->id, static_cast<int>(choice.task->turns)};
  }
  return buffer_order_->may_start(choice.microbatch, turn);
}

bool DynamicTurns::turn_ended(const Task& task) {
  if (buffer_order_ == nullptr) {
    return false;
  }
  const BufferOrder::TurnId turn{task.id, static_cast<int>(task.turns) - 1};
  const bool forward = task.request.phase == Phase::kForward && !task.request.after_backward;
  return buffer_order_->turn_ends(task.request.microbatch, turn, forward);
}

void DynamicTurns::forward_ended(int microbatch) {
  if (buffer_order_ == nullptr || !buffer_order_->known()) {
    return;
  }
  buffer_order_->forward_ended(microbatch);
  if (context_.root()) {
    Fields fields;
    fields.kind = ServerMessage::kForwardEnded;
    fields.serial = serial_;
    fields.microbatch = microbatch;
    context_.send_to_others(fields);
  }
}

void DynamicTurns::take(const Fields& fields) {
  if (fields.kind == ServerMessage::kForwardEnded) {
    forward_ended(fields.microbatch);
  }
}

void DynamicTurns::completed() {
  if (buffer_order_ != nullptr) {
    buffer_order_->completed();
  }
}

} // namespace tessera::runtime
