#include "tessera/runtime/server.h"

#include <algorithm>
#include <utility>

#include "tessera/autograd/weight_gradient.h"
#include "tessera/base/error.h"
#include "tessera/diagnostics/activity.h"
#include "tessera/diagnostics/wait.h"
#include "tessera/random/operators.h"
#include "tessera/runtime/autograd_modes.h"
#include "tessera/runtime/error_text.h"
#include "tessera/runtime/stream_seed.h"

namespace tessera::runtime {

namespace {

using State = schedule::Progress::State;

constexpr auto kPoll = std::chrono::milliseconds(200);

/// Around user code: its module calls go to `interceptor`, its weight gradients may be deferred,
/// its operators are seen by `watcher` where there is one, its regions keep their inputs with
/// `keeper` and tell `before`, its dropouts draw from `stream` where there is one.
class UserCodeScope {
 public:
  UserCodeScope(
      nn::Interceptor* interceptor,
      DispatchMode* watcher,
      recompute::Keeper* keeper,
      recompute::BeforeRegion* before,
      std::optional<random::Stream> stream,
      int microbatch)
      : interceptor_(interceptor),
        keeper_(keeper, microbatch),
        before_(before),
        other_numbers_(stream.has_value()),
        stream_(std::move(stream)) {
    if (watcher != nullptr) {
      watched_.emplace(watcher);
    }
  }
  void finish(const std::string& task) const {
    other_numbers_.finish(task);
  }

 private:
  nn::InterceptorScope interceptor_;
  recompute::KeeperScope keeper_;
  recompute::BeforeRegionScope before_;
  random::OtherNumbersWatch other_numbers_;
  random::StreamScope stream_;
  WeightGradientScope gradients_;
  std::optional<DispatchScope> watched_;
};

/// The stream of a task, from the count that its request brought.
std::optional<random::Stream> stream_of(const StepWork& work, const Fields& request) {
  if (work.random_layout == nullptr) {
    return std::nullopt;
  }
  return random::Stream{
      work.random_layout,
      work.draws,
      request.microbatch,
      request.random_samples,
      request.random_used};
}

} // namespace

Server::Server(ServerContext context)
    : context_(std::move(context)),
      orders_(context_),
      calls_(context_, *this, orders_.gradients()),
      inquiry_(context_),
      workers_([this](std::shared_ptr<Task> done) { return after(std::move(done)); }) {}

Server::~Server() = default;

std::vector<c10::IValue> Server::run_step(const StepWork& work) {
  try {
    open_step(work);
    loop();
    finish_orders();
    send_end();
  } catch (...) {
    close_step();
    throw;
  }
  const std::unique_ptr<StepState> step = close_step();
  if (!step->failure) { // a late failure: the step had ended elsewhere
    step->failure = std::move(step->failed_late);
  }
  if (step->failure) {
    throw UserError(*step->failure);
  }
  return std::move(step->results);
}

void Server::open_step(const StepWork& work) {
  orders_.begin(work.microbatches);
  StepControl& control = *this; // private to others
  step_ = std::make_unique<StepState>(context_, work, control, orders_.buffers());
  calls_.set_step(step_.get());
  if (context_.keeper != nullptr) {
    context_.keeper->step_begins(work.kind);
  }
  for (auto& parcel : std::exchange(early_, {})) {
    take(std::move(parcel));
  }
}

std::unique_ptr<StepState> Server::close_step() {
  if (step_ == nullptr) {
    return nullptr; // it could not be opened
  }
  cancel_suspended();
  calls_.set_step(nullptr);
  if (context_.keeper != nullptr) {
    context_.keeper->step_ended();
  }
  if (step_->random_after) {
    step_->random_after->restore();
  }
  return std::move(step_);
}

void Server::loop() {
  while (const auto choice = next_choice()) {
    worker_of(*choice).give(begin(*choice));
    if (step_->error) {
      std::rethrow_exception(std::exchange(step_->error, nullptr));
    }
  }
}

std::optional<Choice> Server::next_choice() {
  for (;;) {
    take_all();
    if (step_over()) {
      return std::nullopt;
    }
    if (auto choice = step_->turns->next()) {
      if (!choice->refusal) {
        return choice;
      }
      refuse(*choice);
      continue;
    }
    switch (step_->turns->listen(kPoll)) {
      case TurnSource::Heard::kNotListening:
        wait_for_message();
        break;
      case TurnSource::Heard::kSomething:
        step_->last_heard = std::chrono::steady_clock::now();
        break;
      case TurnSource::Heard::kNothing:
        // This also detects that a rank of the pipeline is gone.
        if (auto parcel = context_.transport->receive(std::chrono::milliseconds(0))) {
          take(std::move(*parcel));
        }
        check_timeout();
        break;
    }
  }
}

bool Server::step_over() const {
  return step_->ended || (context_.root() && (step_->failure || step_->turns->done()));
}

void Server::wait_for_message() {
  publish_wait(step_->tasks, step_->work.step, *context_.modules);
  if (auto parcel = context_.transport->receive(kPoll)) {
    take(std::move(*parcel));
    return;
  }
  check_timeout();
}

void Server::check_timeout() {
  const auto started = step_->last_heard;
  const auto idle = std::chrono::steady_clock::now() - started;
  const bool in_vain =
      idle > diagnostics::Wait::kSettled && std::any_of(
                                                context_.pp_ranks.begin(),
                                                context_.pp_ranks.end(),
                                                diagnostics::activity::has_ended_program);
  if (idle <= context_.timeout && !in_vain) {
    return;
  }
  const std::string others =
      inquiry_.ask_others([this](transport::Parcel parcel) { take(std::move(parcel)); });
  if (step_->last_heard != started) {
    return; // what was waited for came after all
  }
  diagnostics::activity::leave(); // this error reports this rank's end
  throw CommError(
      str("rank ",
          context_.rank,
          " heard nothing for ",
          std::chrono::duration<double>(idle).count(),
          " s in step ",
          step_->work.step,
          "; ",
          state(),
          others,
          diagnostics::activity::of_node()));
}

std::string Server::state() const {
  std::string text = waiting_text(step_->tasks, *context_.modules);
  if (text.empty()) {
    text = step_->turns->waits_for();
  }
  if (text.empty()) {
    text =
        str("it has no task and waits for requests; rank ",
            context_.pp_ranks.front(),
            " runs the step");
  }
  return text + step_->turns->order_text();
}

// Adds the gradients that still wait for earlier ones, and keeps what the step showed.
void Server::finish_orders() {
  if (step_->failure || step_->failed_late) {
    return;
  }
  if (GradientOrder* order = orders_.gradients()) {
    order->finish();
  }
  step_->turns->completed();
}

void Server::send_end() {
  const bool failed = step_->failure.has_value();
  if (context_.root()) {
    Fields fields;
    fields.kind = ServerMessage::kEnd;
    fields.serial = step_->work.serial;
    fields.failed = failed;
    std::vector<c10::IValue> values = step_->results;
    values.emplace_back(step_->work.agreed);
    if (step_->script_stream != nullptr && !failed) {
      step_->random_after = RandomState::capture();
      values.emplace_back(step_->random_after->to_bytes());
    }
    context_.send_to_others(
        fields,
        failed ? c10::IValue(*step_->failure)
               : c10::IValue(c10::ivalue::Tuple::create(std::move(values))));
  }
  step_->turns->step_ended(failed);
}

std::shared_ptr<Task> Server::make_root_task(int microbatch) {
  auto task = std::make_shared<Task>();
  task->id = step_function_id(microbatch);
  task->request = step_->caller_modes;
  task->request.serial = step_->work.serial;
  task->request.microbatch = microbatch;
  Task* raw = task.get();
  task->run = [this, raw, microbatch] {
    const ModeScope modes(raw->request);
    const UserCodeScope scope(
        &calls_,
        step_->exchange->watcher(),
        context_.keeper,
        this,
        stream_of(step_->work, raw->request),
        microbatch);
    step_->results.at(microbatch) = step_->exchange->read(step_->work.run(microbatch));
    raw->shared.check();
    step_->turn_ended(*raw);
    scope.finish("the step function");
  };
  return task;
}

std::shared_ptr<Task> Server::make_call_task(const Fields& request, int source, c10::IValue body) {
  auto task = std::make_shared<Task>();
  task->kind = Task::Kind::kCall;
  task->source = source;
  task->request = request;
  task->body = std::move(body);
  const bool forward = request.phase == Phase::kForward;
  task->id = mix(request.call, forward ? 1 : 2);
  Task* raw = task.get();
  task->run = [this, raw, forward] {
    const UserCodeScope scope(
        &calls_,
        step_->exchange->watcher(),
        context_.keeper,
        this,
        stream_of(step_->work, raw->request),
        raw->request.microbatch);
    forward ? calls_.run_forward(*raw) : calls_.run_backward(*raw);
    scope.finish(task_text(raw->request, *context_.modules));
  };
  return task;
}

void Server::refuse(const Choice& choice) {
  const std::shared_ptr<Task> task = choice.task;
  if (task == nullptr || task->kind == Task::Kind::kRoot) {
    step_->fail(*choice.refusal);
    return;
  }
  step_->tasks.remove(task);
  if (choice.resumes()) {
    task->cancelled = true;
    choice.worker->give(task);
  }
  task->finished = true;
  task->error = std::make_exception_ptr(UserError(*choice.refusal));
  settle(task);
}

void Server::settle(const std::shared_ptr<Task>& task) {
  if (!task->error) {
    try {
      step_->turns->check_finished(*task);
    } catch (const UserError&) {
      task->error = std::current_exception();
    }
  }
  const int microbatch = task->request.microbatch;
  std::string text = task->error ? failure_of(*task) : std::string();
  if (task->kind == Task::Kind::kRoot) {
    if (task->error) {
      step_->fail(std::move(text));
    }
    step_->tasks.progress.states.at(microbatch) = State::kDone;
    step_->turns->forward_ended(microbatch);
    step_->tasks.roots.at(microbatch) = nullptr;
  } else if (task->error && task->responded) { // too late to fail at the caller
    step_->failed_late = text;
    abort(std::move(text));
  } else if (task->error) {
    step_->exchange->respond_failure(*task, std::move(text));
  }
}

std::string Server::failure_of(const Task& task) const {
  const std::string text =
      error_text(task.error, context_.rank, task_text(task.request, *context_.modules));
  if (context_.failed) {
    context_.failed(text);
  }
  return text;
}

void Server::cancel_suspended() {
  for (auto& [worker, task] : std::exchange(step_->tasks.suspended, {})) {
    task->cancelled = true;
    worker->give(task);
    TESSERA_CHECK(task->finished);
  }
}

} // namespace tessera::runtime
