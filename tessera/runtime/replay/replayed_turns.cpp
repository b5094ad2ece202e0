#include "tessera/runtime/replay/replayed_turns.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/runtime/stream_seed.h"

namespace tessera::runtime {

ReplayedTurns::ReplayedTurns(
    const StepResources& resources,
    const StaticProgram& program,
    std::shared_ptr<const PacketStore> packets)
    : context_(resources.context),
      tasks_(resources.tasks),
      control_(resources.control),
      program_(program),
      serial_(resources.work.serial),
      packets_(std::move(packets)) {}

const PlannedTurn* ReplayedTurns::planned() const {
  const auto& turns = program_.plan.turns;
  return next_ < turns.size() ? &turns[next_] : nullptr;
}

bool ReplayedTurns::can_begin(const PlannedTurn& turn) const {
  return std::all_of(turn.needs.begin(), turn.needs.end(), [this](const MessageId& packet) {
    return packets_->has(packet);
  });
}

/// pp rank 0 ends the step when it has seen that the ranks are done; an interrupted task that had
/// not ended by then would be cancelled, and gradients that it had still to add be lost.
bool ReplayedTurns::shows_the_end(const PlannedTurn& turn) const {
  return &turn == &program_.plan.turns.back() && !program_.plan.reports;
}

std::optional<Choice> ReplayedTurns::next() {
  if (control_.aborted()) {
    return std::nullopt;
  }
  if (const SuspendedTask* held = tasks_.interrupted()) {
    const auto first = awaited();
    return first ? first : choice_of(*held);
  }
  const PlannedTurn* turn = planned();
  if (turn == nullptr) {
    report_done();
    return std::nullopt;
  }
  if (!can_begin(*turn)) {
    return std::nullopt;
  }
  Choice choice = choice_of(*turn);
  ++next_;
  return choice;
}

std::optional<Choice> ReplayedTurns::awaited() {
  const PlannedTurn* turn = planned();
  if (control_.aborted() || context_.order != nullptr || turn == nullptr || shows_the_end(*turn) ||
      !is_awaited(turn->turn) || !can_begin(*turn)) {
    return std::nullopt;
  }
  Choice choice = choice_of(*turn);
  ++next_;
  return choice;
}

// The schedule may want the end of a backward before it starts another.
bool ReplayedTurns::is_awaited(const Turn& turn) const {
  if (turn.cause == Cause::kStart) {
    return turn.message.call != 0;
  }
  const SuspendedTask* held = tasks_.find_suspended(turn.task);
  if (held == nullptr || held->task->gave_way) {
    return false;
  }
  const Task& task = *held->task;
  if (turn.cause == Cause::kSchedule) {
    const auto action = context_.schedule->next(tasks_.progress);
    return action && action->phase == Phase::kBackward &&
           action->microbatch == task.request.microbatch;
  }
  return task.request.phase == Phase::kForward || task.awaited;
}

void ReplayedTurns::report_done() {
  if (!program_.plan.reports || std::exchange(reported_, true)) {
    return;
  }
  Fields fields;
  fields.kind = ServerMessage::kDone;
  fields.serial = serial_;
  context_.transport->send(context_.pp_ranks.front(), to_header(fields), c10::IValue());
}

void ReplayedTurns::take(const Fields& fields) {
  reports_ += fields.kind == ServerMessage::kDone ? 1 : 0;
}

bool ReplayedTurns::done() const {
  return planned() == nullptr && tasks_.root_done() && reports_ == program_.plan.reports_expected;
}

Choice ReplayedTurns::choice_of(const PlannedTurn& planned) const {
  const Turn& turn = planned.turn;
  Choice choice = turn.cause != Cause::kStart ? choice_to_resume(turn)
                  : turn.message.call == 0    ? choice_of_root(turn)
                                              : choice_of_call(turn);
  choice.key = mix(turn.task, static_cast<std::uint64_t>(turn.number));
  return choice;
}

Choice ReplayedTurns::choice_of(const SuspendedTask& held) {
  Choice choice;
  choice.worker = held.worker;
  choice.task = held.task;
  choice.microbatch = held.task->request.microbatch;
  choice.phase = held.task->request.phase;
  return choice;
}

Choice ReplayedTurns::choice_to_resume(const Turn& turn) const {
  const SuspendedTask* held = tasks_.find_suspended(turn.task);
  TESSERA_CHECK(held != nullptr, "a static turn of a task that is not there");
  Choice choice = choice_of(*held);
  if (turn.cause == Cause::kSchedule) {
    choice.phase = Phase::kBackward;
  }
  return choice;
}

Choice ReplayedTurns::choice_of_root(const Turn& turn) const {
  Choice choice;
  while (step_function_id(choice.microbatch) != turn.task) {
    ++choice.microbatch;
    TESSERA_CHECK(choice.microbatch < tasks_.microbatches());
  }
  return choice;
}

// No request comes for this task, so the recorded one takes its place.
Choice ReplayedTurns::choice_of_call(const Turn& turn) const {
  const RecordedMessage& asked = program_.recording.messages.at(turn.message);
  Choice choice;
  choice.request = asked.fields;
  choice.request->serial = serial_;
  choice.request->module_mode = ModuleMode::kUnchecked;
  choice.source = context_.pp_ranks.at(asked.peer);
  choice.microbatch = asked.fields.microbatch;
  choice.phase = asked.fields.phase;
  return choice;
}

void ReplayedTurns::check_finished(const Task& task) const {
  const auto turns = program_.turns.find(task.id);
  const int wanted = turns == program_.turns.end() ? 0 : turns->second;
  if (static_cast<int>(task.turns) != wanted) {
    throw UserError(
        str("it ended after ",
            task.turns - 1,
            " calls of modules on other ranks and waits for the schedule, "
            "where ",
            wanted - 1,
            " were recorded",
            kStaticAdvice));
  }
}

std::string ReplayedTurns::waits_for() const {
  const PlannedTurn* turn = planned();
  if (turn == nullptr || turn->turn.message.call == 0) {
    return {};
  }
  const MessageId& id = turn->turn.message;
  const RecordedMessage& message = program_.recording.messages.at(id);
  return str(
      "it waits for ",
      message_text(id, message.fields.module, *context_.modules),
      ", microbatch ",
      message.fields.microbatch,
      " (static step)");
}

} // namespace tessera::runtime
