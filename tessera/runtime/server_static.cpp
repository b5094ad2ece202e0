// Steps that repeat a static program: the next turn is known, only what it
// needs has to be there.
#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/runtime/error_text.h"
#include "tessera/runtime/server.h"

namespace tessera::runtime {

std::optional<Server::Choice> Server::next_static_choice() {
  for (;;) {
    take_all();
    if (end_ || (root() && (failure_ || static_done()))) {
      return std::nullopt;
    }
    if (!gave_up_) {
      if (const PlannedTurn* turn = static_->ready_turn()) {
        static_->advance();
        return choice_of(*turn);
      }
      if (static_->next_turn() == nullptr && !reported_ && static_->program().plan.reports) {
        Fields fields;
        fields.kind = Kind::kDone;
        fields.serial = work_->serial;
        context_.transport->send(context_.pp_ranks.front(), to_header(fields), c10::IValue());
        reported_ = true;
      }
    }
    wait_for_message();
  }
}

bool Server::static_done() const {
  return static_->next_turn() == nullptr && root_done() &&
         reports_ == static_->program().plan.reports_expected;
}

Server::Choice Server::choice_of(const PlannedTurn& planned) {
  const Turn& turn = planned.turn;
  Choice choice;
  choice.key = mix(turn.task, static_cast<std::uint64_t>(turn.number));
  if (turn.cause != Cause::kStart) {
    const auto held = std::find_if(suspended_.begin(), suspended_.end(), [&](const auto& entry) {
      return entry.second->id == turn.task;
    });
    TESSERA_CHECK(held != suspended_.end(), "a static turn of a task that is not there");
    choice.worker = held->first;
    choice.task = held->second;
    choice.resume = true;
    choice.microbatch = choice.task->request.microbatch;
    choice.phase = turn.cause == Cause::kSchedule ? Phase::kBackward : choice.task->request.phase;
  } else if (turn.leg.call == 0) {
    while (step_function_id(choice.microbatch) != turn.task) {
      ++choice.microbatch;
      TESSERA_CHECK(choice.microbatch < work_->microbatches);
    }
  } else {
    transport::Parcel parcel;
    const RecordedLeg& asked = static_->program().recording.legs.at(turn.leg);
    parcel.source = context_.pp_ranks.at(asked.peer);
    parcel.header = to_header(static_->fields_of(planned));
    choice.task = make_call_task(std::move(parcel));
    choice.microbatch = choice.task->request.microbatch;
    choice.phase = choice.task->request.phase;
  }
  return choice;
}

// Nobody waits for an answer to a request here, so pp rank 0 hears of an error
// at once, and ends the step for all.
void Server::give_step_up(std::string text) {
  if (root()) {
    fail(std::move(text));
    return;
  }
  if (gave_up_) {
    return;
  }
  gave_up_ = true;
  Fields fields;
  fields.kind = Kind::kFailed;
  fields.serial = work_->serial;
  context_.transport->send(
      context_.pp_ranks.front(), to_header(fields), c10::IValue(std::move(text)));
}

void Server::left_program(const Task& task) {
  give_step_up(error_text(
      std::current_exception(), context_.rank, task_text(task.request, *context_.modules)));
}

// Each rank knows by itself that a step is static; the script may have seen to
// it that they disagree.
void Server::check_mode(const Fields& fields, int source) {
  const bool packet = fields.kind == Kind::kPacket;
  const bool call = fields.kind == Kind::kRequest || fields.kind == Kind::kResponse;
  const bool agreed = packet ? static_ != nullptr && static_->program().number == fields.program
                             : !call || static_ == nullptr;
  if (!agreed) {
    give_step_up(
        str("rank ",
            context_.rank,
            ": rank ",
            source,
            " runs this step as another kind of step than this rank: with "
            "static_mode the same step object must be called on every rank, "
            "with gradients on or off and the model in training or evaluation "
            "alike"));
  }
}

std::string Server::static_state() const {
  const PlannedTurn* turn = static_->next_turn();
  if (turn == nullptr || turn->turn.leg.call == 0) {
    return {};
  }
  const RecordedLeg& leg = static_->program().recording.legs.at(turn->turn.leg);
  return str(
      "it waits for ",
      leg_text(turn->turn.leg, leg.fields.module, *context_.modules),
      ", microbatch ",
      leg.fields.microbatch,
      " (static step)");
}

} // namespace tessera::runtime
