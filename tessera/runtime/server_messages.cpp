// What the messages of other ranks do to a step.
#include <utility>

#include "tessera/base/error.h"
#include "tessera/runtime/server.h"

namespace tessera::runtime {

void Server::take_all() {
  while (auto parcel = context_.transport->try_receive()) {
    take(std::move(*parcel));
  }
}

void Server::take(transport::Parcel parcel) {
  const Fields fields = from_header(parcel.header);
  if (fields.kind == ServerMessage::kProbe) {
    inquiry_.answer(parcel.source, state());
  } else if (fields.kind == ServerMessage::kState) {
    inquiry_.take_answer(parcel);
  } else if (fields.serial > step_->work.serial) {
    early_.push_back(std::move(parcel));
  } else if (fields.serial == step_->work.serial) {
    take_step_message(fields, std::move(parcel));
  } // else of a step that was aborted
}

void Server::take_step_message(const Fields& fields, transport::Parcel parcel) {
  step_->last_heard = std::chrono::steady_clock::now();
  const bool accepted = step_->exchange->accepts(fields);
  if (!accepted) {
    // Each rank knows by itself what kind of step it runs; a script may have made the ranks
    // disagree.
    abort(str(
        "rank ",
        context_.rank,
        ": rank ",
        parcel.source,
        " runs this step as another kind of step than this rank: with static_mode the same step "
        "object must be called on every rank, with gradients on or off, the model in training or "
        "evaluation and the same parameters frozen alike"));
  }
  switch (fields.kind) {
    case ServerMessage::kRequest:
      step_->tasks.ready.push_back(make_call_task(fields, parcel.source, std::move(parcel.body)));
      break;
    case ServerMessage::kResponse:
      take_response(fields, std::move(parcel));
      break;
    case ServerMessage::kEnd:
      take_end(fields, parcel);
      break;
    case ServerMessage::kPacket:
      if (accepted && !step_->aborted) {
        step_->exchange->take_packet(fields, parcel.body);
      }
      break;
    case ServerMessage::kDone:
    case ServerMessage::kForwardEnded:
      step_->turns->take(fields);
      break;
    case ServerMessage::kFailed:
      step_->fail(parcel.body.toStringRef());
      break;
    case ServerMessage::kProbe:
    case ServerMessage::kState:
      break; // taken before
  }
}

void Server::take_response(const Fields& fields, transport::Parcel parcel) {
  for (const auto& [worker, task] : step_->tasks.suspended) {
    if (task->awaits == fields.call && !task->response) {
      task->response = std::move(parcel);
      return;
    }
  }
}

void Server::take_end(const Fields& fields, const transport::Parcel& parcel) {
  step_->ended = true;
  if (fields.failed) {
    step_->failure = parcel.body.toStringRef();
    return;
  }
  const auto& values = parcel.body.toTupleRef().elements();
  const int microbatches = step_->work.microbatches;
  step_->results.assign(values.begin(), values.begin() + microbatches);
  if (step_->work.check_agreed) {
    const std::string wrong = step_->work.check_agreed(values.at(microbatches));
    if (!wrong.empty()) {
      step_->failed_late = wrong; // pp rank 0 has ended the step
    }
  }
  if (step_->script_stream != nullptr) {
    step_->random_after = RandomState::from_bytes(values.at(microbatches + 1).toTensor());
  }
}

} // namespace tessera::runtime
