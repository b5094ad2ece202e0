// What makes a step's sums and buffers independent of timing.
#include "tessera/runtime/remote_backward.h"
#include "tessera/runtime/server.h"

namespace tessera::runtime {

// A model that was added or removed changes what is ordered, on all ranks alike.
void Server::follow_directory() {
  if (ordered_revision_ == context_.modules->revision()) {
    return;
  }
  ordered_revision_ = context_.modules->revision();
  parameters_.clear();
  for (const auto& [name, parameter] : context_.modules->local_parameters()) {
    parameters_.push_back(parameter);
  }
  buffer_order_ = context_.modules->has_buffers()
                      ? std::make_unique<BufferOrder>(context_.modules->local_buffers())
                      : nullptr;
}

void Server::begin_orders() {
  if (context_.reproducible) {
    follow_directory();
  }
  if (gradient_order_ != nullptr) {
    gradient_order_->begin(
        parameters_, context_.schedule->positions(Phase::kBackward, work_->microbatches));
  }
  if (buffer_order_ != nullptr && static_ == nullptr) {
    buffer_order_->begin(
        work_->kind, context_.schedule->positions(Phase::kForward, work_->microbatches));
  }
}

bool Server::may_start(const Choice& choice) const {
  if (buffer_order_ == nullptr || choice.phase == Phase::kBackward) {
    return true;
  }
  BufferOrder::TurnId turn{step_function_id(choice.microbatch), 0};
  if (choice.task != nullptr) {
    turn = {choice.task->id, static_cast<int>(choice.task->turns)};
  }
  return buffer_order_->may_start(choice.microbatch, turn);
}

// Until a step has shown which parts of a forward change buffers, all may.
bool Server::runs_forward_alone() const {
  return buffer_order_ != nullptr && !buffer_order_->known();
}

void Server::turn_ends(const Task& task) {
  // A static step repeats an order that a recorded step had under these rules.
  if (buffer_order_ == nullptr || static_ != nullptr) {
    return;
  }
  const BufferOrder::TurnId turn{task.id, static_cast<int>(task.turns) - 1};
  const bool forward = task.request.phase == Phase::kForward && task.request.after_backward == 0;
  const bool changed = buffer_order_->turn_ends(task.request.microbatch, turn, forward);
  if (changed && work_->recording != nullptr) {
    work_->recording->keep_place(turn.task, turn.number);
  }
}

void Server::forward_ended(int microbatch) {
  if (buffer_order_ == nullptr || static_ != nullptr || !buffer_order_->known()) {
    return;
  }
  buffer_order_->forward_ended(microbatch);
  if (!root()) {
    return;
  }
  Fields fields;
  fields.kind = Kind::kForwardEnded;
  fields.serial = work_->serial;
  fields.microbatch = microbatch;
  for (std::size_t i = 1; i < context_.pp_ranks.size(); ++i) {
    context_.transport->send(context_.pp_ranks[i], to_header(fields), c10::IValue());
  }
}

void Server::expect_backward(CallRecord& record, int microbatch) {
  if (gradient_order_ != nullptr && !record.outputs.empty()) {
    record.targets = targets_below(record.outputs, RemoteBackward::is);
    record.graph = gradient_order_->expect(microbatch, record.targets);
  }
}

void Server::add_what_is_left() {
  if (failure_ || failed_late_) {
    return;
  }
  if (gradient_order_ != nullptr) {
    gradient_order_->finish();
  }
  if (buffer_order_ != nullptr && static_ == nullptr) {
    buffer_order_->completed();
  }
}

} // namespace tessera::runtime
