// Passes the baton from one task to the next.
#include <utility>

#include "tessera/autograd/weight_gradient.h"
#include "tessera/diagnostics/activity.h"
#include "tessera/runtime/autograd_modes.h"
#include "tessera/runtime/server.h"
#include "tessera/runtime/stream_seed.h"

namespace tessera::runtime {

// The thread that has the baton chooses itself what runs next. A switch to the server thread and
// back would cost as much as the message that is waited for.
std::optional<Choice> Server::choose_on_worker() {
  if (step_->turns->on_server_thread_only()) {
    return std::nullopt;
  }
  const ModeScope modes(step_->caller_modes); // not those of the task that waits
  try {
    return next_choice();
  } catch (...) {
    step_->error = std::current_exception();
    return std::nullopt;
  }
}

void Server::wait_for_answer(Task& task, const Fields& fields, int rank) {
  task.awaits = fields.call;
  task.awaits_rank = rank;
  task.awaits_module = fields.module;
  pause();
  task.awaits = 0;
}

void Server::pause() {
  Worker& worker = *Worker::current();
  const std::shared_ptr<Task> task = worker.task();
  step_->turn_ended(*task);
  // Other ranks have what they need of this task, so its deferred work runs now.
  if (auto* pass = WeightGradientPass::current()) {
    pass->catch_up();
  }
  end_turn(*task);
  step_->tasks.suspended.push_back({&worker, task});
  const auto choice = choose_on_worker();
  if (choice && choice->task == task) {
    begin(*choice); // it never gave the baton away
    return;
  }
  give_away(choice);
}

void Server::give_away(const std::optional<Choice>& choice) {
  Worker::current()->suspend([&] {
    try {
      if (choice) {
        worker_of(*choice).pass(begin(*choice));
        return;
      }
    } catch (...) { // no thread was to be had: not this task's fault
      step_->error = std::current_exception();
    }
    workers_.wake_server();
  });
}

// The rank's other turns may be short and keep other ranks from working: such as the loss of the
// next microbatch, which its last rank waits for while this one has the long rest of a backward.
void Server::region_comes() {
  Worker* worker = Worker::current();
  auto* pass = WeightGradientPass::current();
  if (worker == nullptr || pass == nullptr || pass->defers() ||
      step_->turns->on_server_thread_only()) {
    return;
  }
  const std::shared_ptr<Task> task = worker->task();
  std::optional<Choice> choice;
  try {
    const ModeScope modes(step_->caller_modes);
    take_all();
    if (step_over()) {
      return;
    }
    choice = step_->turns->awaited();
  } catch (...) {
    step_->error = std::current_exception(); // of the rank, not of this task
  }
  if (!choice && !step_->error) {
    return;
  }
  step_->turn_ended(*task);
  pass->catch_up(); // what it deferred is added before any other microbatch's part
  end_turn(*task);
  task->gave_way = true;
  step_->tasks.suspended.push_back({worker, task});
  give_away(choice);
}

std::shared_ptr<Task> Server::after(std::shared_ptr<Task> done) {
  end_turn(*done);
  std::optional<Choice> choice;
  if (!done->cancelled) { // else the server thread waits for it
    try {
      settle(done);
      choice = choose_on_worker();
    } catch (...) {
      step_->error = std::current_exception();
    }
  }
  done = nullptr;
  if (!choice) {
    workers_.wake_server();
    return nullptr;
  }
  auto task = begin(*choice);
  if (!choice->resumes()) {
    return task;
  }
  choice->worker->pass(std::move(task));
  return nullptr;
}

Worker& Server::worker_of(const Choice& choice) {
  return choice.resumes() ? *choice.worker : workers_.idle();
}

std::shared_ptr<Task> Server::begin(const Choice& choice) {
  using State = schedule::Progress::State;
  auto& states = step_->tasks.progress.states;
  std::shared_ptr<Task> task = choice.task;
  bool starts = !choice.resumes(); // a phase of a microbatch, and does not go on with one
  if (task == nullptr && choice.request) {
    task = make_call_task(*choice.request, choice.source, {});
  } else if (task == nullptr) {
    task = make_root_task(choice.microbatch);
    step_->tasks.roots.at(choice.microbatch) = task;
    states.at(choice.microbatch) = State::kForward;
  } else if (
      task->kind == Task::Kind::kRoot && task->awaits == 0 && !task->gave_way &&
      choice.phase == Phase::kBackward) {
    states.at(choice.microbatch) = State::kBackward;
    task->request.phase = Phase::kBackward;
    starts = true;
  }
  step_->tasks.remove(task);
  if (!choice.resumes() && context_.random_streams && step_->script_stream == nullptr) {
    task->random = RandomState::seeded(stream_seed(context_.seed, step_->work.draws, task->id));
  }
  if (starts && context_.keeper != nullptr) {
    context_.keeper->task_begins(
        {task->request.microbatch, task->request.phase == Phase::kBackward});
  }
  start_turn(*task);
  if (std::exchange(task->gave_way, false)) {
    return task; // with the turn that it had
  }
  if (step_->observer != nullptr) {
    step_->observer->began(*task, choice.resumes());
  }
  ++task->turns;
  return task;
}

void Server::start_turn(Task& task) const {
  const Fields& request = task.request;
  diagnostics::activity::runs(
      step_->work.step,
      request.module < 0 ? std::string() : context_.modules->name_of(request.module),
      request.microbatch,
      request.phase == Phase::kBackward);
  timeline::Recorder* recorder = context_.recorder;
  if (recorder != nullptr && recorder->enabled()) {
    task.turn_start_us = recorder->now_us();
  }
}

void Server::end_turn(Task& task) {
  step_->last_heard = std::chrono::steady_clock::now();
  if (!task.turn_start_us) {
    return;
  }
  const Fields& request = task.request;
  timeline::Event event;
  event.start_us = *std::exchange(task.turn_start_us, std::nullopt);
  event.end_us = context_.recorder->now_us();
  event.category = request.phase == Phase::kForward ? "forward" : "backward";
  event.name = request.module < 0 ? "step function" : context_.modules->name_of(request.module);
  event.microbatch = request.microbatch;
  event.step = static_cast<int>(step_->work.step);
  event.lane = workers_.current_lane();
  context_.recorder->add(std::move(event));
}

// Perhaps no rank waits for an answer that reports this error, so pp rank 0 is informed at once and
// ends the step for all.
void Server::abort(std::string text) {
  if (context_.root()) {
    step_->fail(std::move(text));
    return;
  }
  if (std::exchange(step_->aborted, true)) {
    return;
  }
  Fields fields;
  fields.kind = ServerMessage::kFailed;
  fields.serial = step_->work.serial;
  context_.transport->send(
      context_.pp_ranks.front(), to_header(fields), c10::IValue(std::move(text)));
}

} // namespace tessera::runtime
