#include "tessera/runtime/replay/recording_exchange.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/runtime/error_text.h"
#include "tessera/runtime/random_count.h"
#include "tessera/tensor/value.h"

namespace tessera::runtime {

RecordingExchange::RecordingExchange(
    std::unique_ptr<Exchange> inner,
    Recording& recording,
    const std::vector<int>& pp_ranks)
    : inner_(std::move(inner)), recording_(recording), pp_ranks_(pp_ranks) {
  if (recording.reads != nullptr) {
    watcher_ = std::make_unique<VerifyingMode>(recording.reads);
  }
}

int RecordingExchange::pp_rank_of(int rank) const {
  const auto found = std::find(pp_ranks_.begin(), pp_ranks_.end(), rank);
  TESSERA_CHECK(found != pp_ranks_.end());
  return static_cast<int>(found - pp_ranks_.begin());
}

RecordedMessage& RecordingExchange::note(
    const MessageId& id,
    bool sent,
    int peer,
    const Fields& fields,
    const Content& content) {
  RecordedMessage message;
  message.sent = sent;
  message.peer = peer;
  message.fields = fields;
  message.signature = ValueSignature(content.value);
  message.requires_grad = content.requires_grad;
  return recording_.messages[id] = std::move(message);
}

// Sends the real tensors in place of placeholders.
Content
RecordingExchange::send(const MessageId& id, int peer, const Fields& fields, Content content) {
  const DispatchScope unwatched(nullptr);
  RecordedMessage& message = note(id, true, peer, fields, content);
  if (recording_.reads == nullptr) {
    return content;
  }
  const auto real = [&](const at::Tensor& tensor) {
    const Placeholder* info = placeholder_of(tensor);
    message.origins.emplace_back();
    if (info != nullptr && info->self == tensor.unsafeGetTensorImpl() &&
        info->reads == recording_.reads) {
      message.origins.back() = info->origins;
      return info->real;
    }
    return read_tensor(tensor, "a call of a module on another rank");
  };
  if (!is_backward(id.kind)) {
    content.value = map_tensors(content.value, real);
    return content;
  }
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& gradient : unpack<std::vector<at::Tensor>>(content.value)) {
    gradients.push_back(real(gradient)); // a missing one has a slot too
  }
  content.value = pack(gradients);
  return content;
}

void RecordingExchange::request(Task& task, const Fields& fields, int owner, Content content) {
  content = send(request_message(fields), owner, fields, std::move(content));
  inner_->request(task, fields, owner, std::move(content));
}

Content RecordingExchange::response(Task& task, const Fields& fields, int owner) {
  try {
    Content content = inner_->response(task, fields, owner);
    const DispatchScope unwatched(nullptr);
    Fields answer = fields;
    put_count(answer); // of after the call
    note(response_message(fields), false, owner, answer, content);
    return content;
  } catch (const FailedElsewhere& error) {
    recording_.failed_call = error.what();
    throw;
  }
}

Content RecordingExchange::arguments(Task& task) {
  const DispatchScope unwatched(nullptr);
  Content content = inner_->arguments(task);
  note(request_message(task.request), false, pp_rank_of(task.source), task.request, content);
  return content;
}

void RecordingExchange::respond(Task& task, Content content) {
  content = send(
      response_message(task.request), pp_rank_of(task.source), task.request, std::move(content));
  inner_->respond(task, std::move(content));
}

c10::IValue RecordingExchange::hand_over(const MessageId& message, c10::IValue value) {
  if (recording_.reads == nullptr) {
    return value;
  }
  const DispatchScope unwatched(nullptr);
  int index = 0;
  if (!is_backward(message.kind)) {
    return map_tensors(value, [&](const at::Tensor& tensor) {
      return verifying_placeholder(tensor, {{message, index++}}, recording_.reads, false);
    });
  }
  auto gradients = unpack<std::vector<at::Tensor>>(value);
  for (at::Tensor& gradient : gradients) {
    if (gradient.defined()) {
      gradient = verifying_placeholder(gradient, {{message, index}}, recording_.reads, true);
    }
    ++index;
  }
  return pack(gradients);
}

c10::IValue RecordingExchange::read(c10::IValue value) {
  if (recording_.reads == nullptr) {
    return value;
  }
  return map_tensors(value, [](const at::Tensor& tensor) {
    return read_tensor(tensor, "the step function's result");
  });
}

void TurnRecorder::began(const Task& task, bool resumed) {
  Turn turn;
  turn.task = task.id;
  turn.number = static_cast<int>(task.turns);
  if (resumed) {
    turn.cause = task.response ? Cause::kResponse : Cause::kSchedule;
    if (task.response) {
      turn.message = response_message(from_header(task.response->header));
    }
  } else if (task.kind == Task::Kind::kCall) {
    turn.message = request_message(task.request);
  }
  recording_.turns.push_back(turn);
}

void TurnRecorder::changed_buffers(const Task& task) {
  recording_.keep_place(task.id, static_cast<int>(task.turns) - 1);
}

} // namespace tessera::runtime
