#include "tessera/runtime/server.h"

#include <algorithm>
#include <tuple>

#include "tessera/autograd/weight_gradient.h"
#include "tessera/base/error.h"
#include "tessera/diagnostics/activity.h"
#include "tessera/runtime/call_modes.h"
#include "tessera/runtime/error_text.h"

namespace tessera::runtime {

namespace {

constexpr auto kPoll = std::chrono::milliseconds(200);

// A task's operators are seen by a watcher, where there is one.
class WatchedScope {
 public:
  explicit WatchedScope(DispatchMode* watcher) {
    if (watcher != nullptr) {
      scope_.emplace(watcher);
    }
  }

 private:
  std::optional<DispatchScope> scope_;
};

// What the others of the node read when this rank never comes back.
void note_waiting(
    const Task* task, // one of those suspended, or none
    std::int64_t step,
    const ModuleDirectory& modules) {
  if (task == nullptr) {
    diagnostics::activity::waits_for_requests(step);
    return;
  }
  const auto name = [&](int module) {
    return module < 0 ? std::string() : modules.name_of(module);
  };
  const Fields& request = task->request;
  const bool for_call = task->awaits != 0;
  diagnostics::activity::waits(
      step,
      name(request.module),
      request.microbatch,
      request.phase == Phase::kBackward,
      for_call ? name(task->awaits_module) : std::string(),
      for_call ? task->awaits_rank : -1);
}

} // namespace

Server::Server(ServerContext context)
    : context_(std::move(context)), dynamic_(*this, *context_.transport, context_.pp_ranks) {
  if (context_.reproducible) {
    gradient_order_ = std::make_unique<GradientOrder>();
  }
}

Server::~Server() = default;

std::vector<c10::IValue> Server::run_step(const StepWork& work) {
  work_ = &work;
  failure_.reset();
  end_.reset();
  results_.assign(work.microbatches, c10::IValue());
  progress_.states.assign(work.microbatches, schedule::Progress::State::kWaiting);
  root_tasks_.assign(work.microbatches, nullptr);
  idle_since_ = std::chrono::steady_clock::now();
  error_ = nullptr;
  capture_modes(caller_modes_);
  // Tasks draw from streams of their own, and the script's goes on untouched; or all draw from the
  // script's, and its end replaces what is kept here.
  random_after_.reset();
  script_stream_.reset();
  if (context_.random_streams) {
    random_after_ = RandomState::capture();
    if (work.script_stream && work.recording == nullptr && work.program == nullptr) {
      script_stream_ = std::make_unique<ScriptStream>();
    }
  }
  dynamic_.carry(script_stream_.get());
  open_exchange();
  begin_orders();
  auto early = std::exchange(early_, {});
  for (auto& parcel : early) {
    take(std::move(parcel));
  }
  const auto leave = [&] {
    cancel_suspended();
    ready_.clear();
    records_.clear();
    root_tasks_.clear();
    exchange_ = nullptr;
    static_ = nullptr;
    other_exchange_.reset();
    if (random_after_) {
      random_after_->restore();
    }
  };
  try {
    loop();
    add_what_is_left();
    end_step(failure_.has_value());
  } catch (...) {
    leave();
    throw;
  }
  leave();
  if (!failure_ && failed_late_) { // the step had ended elsewhere
    failure_ = failed_late_;
  }
  if (failure_) {
    throw UserError(*failure_);
  }
  return std::move(results_);
}

void Server::open_exchange() {
  exchange_ = &dynamic_;
  gave_up_ = false;
  failed_late_.reset();
  reported_ = false;
  reports_ = 0;
  if (work_->program != nullptr) {
    auto made = std::make_unique<StaticExchange>(
        *this,
        *context_.transport,
        *context_.modules,
        context_.pp_ranks,
        *work_->program,
        work_->serial);
    static_ = made.get();
    other_exchange_ = std::move(made);
  } else if (work_->recording != nullptr) {
    other_exchange_ =
        std::make_unique<RecordingExchange>(dynamic_, *work_->recording, context_.pp_ranks);
  }
  if (other_exchange_ != nullptr) {
    exchange_ = other_exchange_.get();
  }
}

void Server::loop() {
  ordered_.reset();
  orders_ended_ = false;
  while (const auto choice = next_choice()) {
    Worker& worker = choice->resume ? *choice->worker : idle_worker();
    worker.give(begin(*choice));
    if (error_) {
      std::rethrow_exception(std::exchange(error_, nullptr));
    }
  }
}

std::optional<Server::Choice> Server::next_choice() {
  if (static_ != nullptr) {
    return next_static_choice();
  }
  for (;;) {
    take_all();
    if (end_ || (root() && (failure_ || root_done()))) {
      return std::nullopt;
    }
    if (follows() && !ordered_ && !orders_ended_) {
      receive_order();
      continue;
    }
    const std::vector<Choice> all = choices();
    auto chosen = all.begin();
    if (follows()) {
      chosen = std::find_if(
          all.begin(), all.end(), [&](const Choice& c) { return ordered_ && c.key == *ordered_; });
    }
    if (chosen == all.end()) {
      if (orders_ended_ && !all.empty()) {
        reject(all.front());
      } else {
        wait_for_message();
      }
      continue;
    }
    ordered_.reset();
    if (context_.order != nullptr && !follows()) {
      context_.order->announce(work_->serial, chosen->key);
    }
    return *chosen;
  }
}

void Server::receive_order() {
  const auto order = context_.order->next(work_->serial, kPoll);
  if (!order) {
    // Also finds out that a rank of the pipeline is gone.
    if (auto parcel = context_.transport->receive(std::chrono::milliseconds(0))) {
      take(std::move(*parcel));
    }
    check_timeout();
    return;
  }
  idle_since_ = std::chrono::steady_clock::now();
  if (!order->end) {
    ordered_ = order->key;
    return;
  }
  // After a failure only the end of the step is waited for.
  orders_ended_ = !order->failed;
  if (order->failed && root()) {
    failure_ =
        str("rank ",
            context_.order->leader_rank(),
            ", which leads the order of tasks, gave the step up");
  }
}

bool Server::root_done() const {
  return std::all_of(progress_.states.begin(), progress_.states.end(), [](auto state) {
    return state == schedule::Progress::State::kDone;
  });
}

std::vector<Server::Choice> Server::choices() const {
  using State = schedule::Progress::State;
  std::vector<Choice> list;
  const auto add = [&](std::shared_ptr<Task> task, Worker* worker, Phase phase) {
    Choice choice;
    choice.worker = worker;
    choice.microbatch = task->request.microbatch;
    choice.phase = phase;
    choice.resume = worker != nullptr;
    choice.key = mix(task->id, task->turns);
    choice.task = std::move(task);
    list.push_back(std::move(choice));
  };
  const auto add_root = [&](int microbatch) {
    const auto& task = root_tasks_.at(microbatch);
    if (progress_.states.at(microbatch) == State::kWaiting) {
      Choice choice;
      choice.microbatch = microbatch;
      choice.key = mix(step_function_id(microbatch), 0);
      list.push_back(std::move(choice));
      return;
    }
    for (const auto& [worker, held] : suspended_) {
      if (held == task) {
        add(task, worker, Phase::kBackward);
      }
    }
  };
  for (const auto& [worker, task] : suspended_) {
    if (task->response) {
      add(task, worker, task->request.phase);
    }
  }
  for (const auto& task : ready_) {
    add(task, nullptr, task->request.phase);
  }
  if (root()) {
    if (context_.order != nullptr && !context_.order->leads()) {
      // The leader's schedule decides; here everything legal is on offer.
      for (int i = 0; i < static_cast<int>(root_tasks_.size()); ++i) {
        const State state = progress_.states[i];
        if (state == State::kWaiting || state == State::kReady) {
          add_root(i);
        }
      }
    } else if (const auto action = context_.schedule->next(progress_)) {
      const bool alone = action->phase == Phase::kForward && runs_forward_alone();
      if (!alone ||
          std::count(progress_.states.begin(), progress_.states.end(), State::kForward) == 0) {
        add_root(action->microbatch);
      }
    }
  }
  if (!follows()) {
    std::erase_if(list, [this](const Choice& choice) { return !may_start(choice); });
  }
  // Backward before forward, old microbatches before new ones (so gradients
  // add up in one order), begun tasks before fresh ones.
  std::sort(list.begin(), list.end(), [](const Choice& a, const Choice& b) {
    return std::make_tuple(a.phase != Phase::kBackward, a.microbatch, !a.resume, a.key) <
           std::make_tuple(b.phase != Phase::kBackward, b.microbatch, !b.resume, b.key);
  });
  return list;
}

std::shared_ptr<Task> Server::make_root_task(int microbatch, const StepWork& work) {
  auto task = std::make_shared<Task>();
  task->id = step_function_id(microbatch);
  task->request = caller_modes_;
  task->request.serial = work.serial;
  task->request.microbatch = microbatch;
  Task* raw = task.get();
  task->run = [this, raw, microbatch, &work] {
    const ModeScope modes(raw->request);
    const nn::InterceptorScope interceptor(this);
    const WeightGradientScope in_place;
    const WatchedScope watched(exchange_->watcher());
    results_.at(microbatch) = exchange_->read(work.run(microbatch));
    turn_ends(*raw);
  };
  return task;
}

std::shared_ptr<Task> Server::make_call_task(transport::Parcel parcel) {
  auto task = std::make_shared<Task>();
  task->kind = Task::Kind::kCall;
  task->source = parcel.source;
  task->request = from_header(parcel.header);
  task->body = std::move(parcel.body);
  const bool forward = task->request.phase == Phase::kForward;
  task->id = mix(task->request.call, forward ? 1 : 2);
  Task* raw = task.get();
  task->run = [this, raw, forward] {
    const nn::InterceptorScope interceptor(this);
    const WeightGradientScope in_place;
    const WatchedScope watched(exchange_->watcher());
    forward ? run_forward(*raw) : run_backward(*raw);
  };
  return task;
}

// The leader's replica ran all it had; what is still here has no counterpart.
// It may hold collectives, so it must not run.
void Server::reject(const Choice& choice) {
  const std::string text =
      str("the flow of modules differs between replicas: rank ",
          context_.order->leader_rank(),
          ", which leads the order of tasks, has finished the step, but rank ",
          context_.rank,
          " still has to run ",
          choice.task == nullptr ? str("the step function, microbatch ", choice.microbatch)
                                 : task_text(choice.task->request, *context_.modules),
          "; with deterministic_server every replica must call the same "
          "modules in every step");
  const std::shared_ptr<Task> task = choice.task;
  if (task == nullptr || task->kind == Task::Kind::kRoot) {
    fail(text);
    return;
  }
  if (choice.resume) {
    std::erase_if(suspended_, [&](const auto& held) { return held.second == task; });
    task->cancelled = true;
    choice.worker->give(task);
  } else {
    std::erase(ready_, task);
  }
  task->finished = true;
  task->error = std::make_exception_ptr(UserError(text));
  settle(task);
}

void Server::settle(const std::shared_ptr<Task>& task) {
  if (static_ != nullptr && !task->error) {
    try {
      static_->check_finished(*task);
    } catch (const UserError&) {
      task->error = std::current_exception();
    }
  }
  if (task->kind == Task::Kind::kRoot) {
    if (task->error) {
      fail(failure_of(*task));
    }
    progress_.states.at(task->request.microbatch) = schedule::Progress::State::kDone;
    forward_ended(task->request.microbatch);
    root_tasks_.at(task->request.microbatch) = nullptr;
    return;
  }
  if (task->error) {
    std::string text = failure_of(*task);
    if (task->responded) { // too late to fail there
      failed_late_ = text;
    }
    if (static_ != nullptr || task->responded) {
      give_step_up(std::move(text));
      return;
    }
    Fields fields = task->request;
    fields.kind = Kind::kResponse;
    fields.failed = 1;
    context_.transport->send(task->source, to_header(fields), c10::IValue(std::move(text)));
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

void Server::take_all() {
  while (auto parcel = context_.transport->try_receive()) {
    take(std::move(*parcel));
  }
}

void Server::take(transport::Parcel parcel) {
  const Fields fields = from_header(parcel.header);
  if (fields.kind == Kind::kProbe) {
    Fields answer;
    answer.kind = Kind::kState;
    context_.transport->send(parcel.source, to_header(answer), c10::IValue(state()));
  } else if (fields.kind == Kind::kState) {
    answers_[parcel.source] = parcel.body.toStringRef();
  } else if (fields.serial > work_->serial) {
    early_.push_back(std::move(parcel));
  } else if (fields.serial == work_->serial) {
    take_step_message(fields, std::move(parcel));
  } // else of a step that was given up
}

void Server::take_step_message(const Fields& fields, transport::Parcel parcel) {
  idle_since_ = std::chrono::steady_clock::now();
  check_mode(fields, parcel.source);
  switch (fields.kind) {
    case Kind::kRequest:
      ready_.push_back(make_call_task(std::move(parcel)));
      break;
    case Kind::kResponse:
      for (const auto& [worker, task] : suspended_) {
        if (task->awaits == fields.call && !task->response) {
          task->response = std::move(parcel);
          break;
        }
      }
      break;
    case Kind::kEnd:
      if (fields.failed != 0) {
        failure_ = parcel.body.toStringRef();
      } else {
        const auto& values = parcel.body.toTupleRef().elements();
        results_.assign(values.begin(), values.begin() + work_->microbatches);
        if (script_stream_ != nullptr) {
          random_after_ = RandomState::from_bytes(values.at(work_->microbatches).toTensor());
        }
      }
      end_ = std::move(parcel);
      break;
    case Kind::kPacket:
      if (static_ != nullptr && !gave_up_) {
        static_->take(fields, parcel.body);
      }
      break;
    case Kind::kDone:
      ++reports_;
      break;
    case Kind::kForwardEnded:
      forward_ended(fields.microbatch);
      break;
    case Kind::kFailed:
      fail(parcel.body.toStringRef());
      break;
    case Kind::kProbe:
    case Kind::kState:
      break; // taken before
  }
}

void Server::wait_for_message() {
  note_waiting(
      suspended_.empty() ? nullptr : suspended_.front().second.get(),
      work_->step,
      *context_.modules);
  if (auto parcel = context_.transport->receive(kPoll)) {
    take(std::move(*parcel));
    return;
  }
  check_timeout();
}

void Server::fail(std::string text) {
  if (!failure_) {
    failure_ = std::move(text);
  }
}

void Server::cancel_suspended() {
  auto held = std::exchange(suspended_, {});
  for (auto& [worker, task] : held) {
    task->cancelled = true;
    worker->give(task);
    TESSERA_CHECK(task->finished);
  }
}

void Server::end_step(bool failed) {
  if (root()) {
    Fields fields;
    fields.kind = Kind::kEnd;
    fields.serial = work_->serial;
    fields.failed = failed ? 1 : 0;
    std::vector<c10::IValue> values = results_;
    if (script_stream_ != nullptr && !failed) {
      random_after_ = RandomState::capture();
      values.emplace_back(random_after_->to_bytes());
    }
    const c10::IValue body = failed ? c10::IValue(*failure_)
                                    : c10::IValue(c10::ivalue::Tuple::create(std::move(values)));
    for (std::size_t i = 1; i < context_.pp_ranks.size(); ++i) {
      context_.transport->send(context_.pp_ranks[i], to_header(fields), body);
    }
  }
  if (context_.order != nullptr && context_.order->leads() && static_ == nullptr) {
    context_.order->announce_end(work_->serial, failed);
  }
}

} // namespace tessera::runtime
