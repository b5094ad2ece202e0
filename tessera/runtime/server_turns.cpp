// Who runs next, and how the baton gets there.
#include <algorithm>

#include "tessera/autograd/weight_gradient.h"
#include "tessera/diagnostics/activity.h"
#include "tessera/runtime/call_modes.h"
#include "tessera/runtime/server.h"

namespace tessera::runtime {

// The thread that has the baton looks itself what comes next. A switch to the
// server thread and back would cost as much as the message that is waited for.
std::optional<Server::Choice> Server::choose_on_worker() {
  if (context_.order != nullptr && static_ == nullptr) {
    return std::nullopt; // a choice may have to be rejected: the server's work
  }
  const ModeScope modes(caller_modes_); // not those of the task that waits
  try {
    return next_choice();
  } catch (...) {
    error_ = std::current_exception();
    return std::nullopt;
  }
}

void Server::pause() {
  turn_ends(*Worker::current()->task());
  // The others have what they need of this task; now is the time for the rest.
  if (auto* pass = WeightGradientPass::current()) {
    pass->catch_up();
  }
  Worker& worker = *Worker::current();
  const std::shared_ptr<Task> task = worker.task();
  end_turn(*task);
  suspended_.emplace_back(&worker, task);
  const auto choice = choose_on_worker();
  if (choice && choice->task == task) {
    begin(*choice); // it never gave the baton away
    return;
  }
  worker.suspend([&] {
    try {
      if (choice) {
        Worker& next = choice->resume ? *choice->worker : idle_worker();
        next.pass(begin(*choice));
        return;
      }
    } catch (...) { // no thread was to be had: not this task's fault
      error_ = std::current_exception();
    }
    server_turn_.release();
  });
}

std::shared_ptr<Task> Server::after(std::shared_ptr<Task> done) {
  end_turn(*done);
  std::optional<Choice> choice;
  if (!done->cancelled) { // else the server thread waits for it
    try {
      settle(done);
      choice = choose_on_worker();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  done = nullptr;
  if (!choice) {
    server_turn_.release();
    return nullptr;
  }
  auto task = begin(*choice);
  if (!choice->resume) {
    return task;
  }
  choice->worker->pass(std::move(task));
  return nullptr;
}

std::shared_ptr<Task> Server::begin(const Choice& choice) {
  using State = schedule::Progress::State;
  std::shared_ptr<Task> task = choice.task;
  if (task == nullptr) {
    task = make_root_task(choice.microbatch, *work_);
    root_tasks_.at(choice.microbatch) = task;
    progress_.states.at(choice.microbatch) = State::kForward;
  } else if (
      task->kind == Task::Kind::kRoot && task->awaits == 0 && choice.phase == Phase::kBackward) {
    progress_.states.at(choice.microbatch) = State::kBackward;
    task->request.phase = Phase::kBackward;
  }
  if (choice.resume) {
    std::erase_if(suspended_, [&](const auto& held) { return held.second == task; });
  } else {
    std::erase(ready_, task);
    if (context_.random_streams && script_stream_ == nullptr) {
      task->random = RandomState::seeded(stream_seed(context_.seed, work_->step, task->id));
    }
  }
  diagnostics::activity::runs(
      work_->step,
      task->request.module < 0 ? std::string() : context_.modules->name_of(task->request.module),
      task->request.microbatch,
      task->request.phase == Phase::kBackward);
  timeline::Recorder* recorder = context_.recorder;
  if (recorder != nullptr && recorder->enabled()) {
    task->turn_start_us = recorder->now_us();
  }
  if (work_->recording != nullptr) {
    record_turn(*task, choice);
  }
  ++task->turns;
  return task;
}

void Server::record_turn(const Task& task, const Choice& choice) {
  Turn turn;
  turn.task = task.id;
  turn.number = static_cast<int>(task.turns);
  if (choice.resume) {
    turn.cause = task.response ? Cause::kResponse : Cause::kSchedule;
    if (task.response) {
      turn.leg = response_leg(from_header(task.response->header));
    }
  } else if (task.kind == Task::Kind::kCall) {
    turn.leg = request_leg(task.request);
  }
  work_->recording->turns.push_back(turn);
}

void Server::end_turn(Task& task) {
  idle_since_ = std::chrono::steady_clock::now();
  if (!task.turn_start_us) {
    return;
  }
  timeline::Event event;
  event.start_us = *std::exchange(task.turn_start_us, std::nullopt);
  event.end_us = context_.recorder->now_us();
  event.category = task.request.phase == Phase::kForward ? "forward" : "backward";
  event.name =
      task.request.module < 0 ? "step function" : context_.modules->name_of(task.request.module);
  event.microbatch = task.request.microbatch;
  event.step = static_cast<int>(work_->step);
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].get() == Worker::current()) {
      event.lane = static_cast<int>(i);
    }
  }
  context_.recorder->add(std::move(event));
}

Worker& Server::idle_worker() {
  for (const auto& worker : workers_) {
    if (worker->idle()) {
      return *worker;
    }
  }
  workers_.push_back(std::make_unique<Worker>(
      server_turn_, [this](std::shared_ptr<Task> done) { return after(std::move(done)); }));
  return *workers_.back();
}

} // namespace tessera::runtime
