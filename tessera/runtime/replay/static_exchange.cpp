#include "tessera/runtime/replay/static_exchange.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/runtime/error_text.h"
#include "tessera/runtime/random_count.h"
#include "tessera/runtime/replay/placeholder.h"
#include "tessera/tensor/value.h"

namespace tessera::runtime {

StaticExchange::StaticExchange(
    const StepResources& resources,
    const StaticProgram& program,
    std::shared_ptr<PacketStore> packets)
    : context_(resources.context),
      control_(resources.control),
      program_(program),
      serial_(resources.work.serial),
      packets_(std::move(packets)) {}

bool StaticExchange::accepts(const Fields& fields) const {
  if (fields.kind == ServerMessage::kPacket) {
    return fields.program == program_.number;
  }
  return fields.kind != ServerMessage::kRequest && fields.kind != ServerMessage::kResponse;
}

void StaticExchange::take_packet(const Fields& fields, const c10::IValue& body) {
  packets_->put({fields.call, fields.call_message}, body.toTensor());
}

const RecordedMessage* StaticExchange::find(const MessageId& id) const {
  const auto found = program_.recording.messages.find(id);
  return found == program_.recording.messages.end() ? nullptr : &found->second;
}

std::string StaticExchange::text(const MessageId& id, const Fields& fields) const {
  return message_text(id, fields.module, *context_.modules);
}

void StaticExchange::check_same(const MessageId& id, const Fields& fields, const Content& content)
    const {
  const RecordedMessage* recorded = find(id);
  if (recorded == nullptr) {
    throw UserError(
        str(text(id, fields), " are to be sent, which no recorded step did", kStaticAdvice));
  }
  if (const auto difference = message_difference(
          id,
          *recorded,
          fields,
          recorded->signature.difference(content.value),
          content.requires_grad,
          *context_.modules)) {
    throw UserError(*difference + kStaticAdvice);
  }
}

// A slot that held a placeholder when it was recorded must hold the same one now: its numbers come
// from elsewhere.
void StaticExchange::check_origins(
    const MessageId& id,
    const Fields& fields,
    const std::vector<at::Tensor>& tensors) const {
  const auto& made = program_.plan.sent.at(id).made;
  const auto& origins = program_.recording.messages.at(id).origins;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Placeholder* info = placeholder_of(tensors[i]);
    if (made.at(i) && info != nullptr) {
      read_tensor(tensors[i], "sending " + text(id, fields));
    }
    if (!made.at(i) && (info == nullptr || info->origins != origins.at(i))) {
      throw UserError(
          str(text(id, fields),
              ": tensor ",
              i,
              " is not the one that was handed on in the recorded steps",
              kStaticAdvice));
    }
  }
}

void StaticExchange::send(const MessageId& id, const Fields& fields, const Content& content) {
  check_same(id, fields, content);
  const std::vector<at::Tensor> tensors = slots_of(id, content.value);
  check_origins(id, fields, tensors);
  Fields header;
  header.kind = ServerMessage::kPacket;
  header.call_message = id.kind;
  header.call = id.call;
  header.microbatch = fields.microbatch;
  header.module = fields.module;
  header.serial = serial_;
  header.program = program_.number;
  for (const Outgoing& outgoing : program_.plan.sent.at(id).outgoing) {
    std::vector<at::Tensor> packet;
    for (const int slot : outgoing.slots) {
      packet.push_back(tensors.at(slot).detach());
    }
    if (context_.pp_ranks.at(outgoing.peer) == context_.rank) {
      for (at::Tensor& tensor : packet) {
        tensor = tensor.clone(); // the module may write into its own later
      }
      packets_->put(id, std::move(packet));
    } else {
      context_.transport->send_packed(context_.pp_ranks[outgoing.peer], to_header(header), packet);
    }
  }
}

Content StaticExchange::receive(const MessageId& id) {
  const RecordedMessage& recorded = program_.recording.messages.at(id);
  const auto defined = slots_defined(id, recorded.signature);
  std::size_t tensor_at = 0;
  const auto& places = program_.plan.received.at(id).places;
  std::vector<at::Tensor> slots;
  for (std::size_t i = 0; i < places.size(); ++i) {
    at::Tensor sum;
    for (const PacketPlace& place : places[i]) {
      const bool may_change = id.kind == CallMessage::kResults;
      const at::Tensor part = packets_->take(place, may_change);
      sum = sum.defined() ? sum + part : part;
    }
    if (defined.at(i)) {
      const TensorSignature& tensor = recorded.signature.tensors().at(tensor_at++);
      if (!sum.defined()) {
        sum = static_placeholder(
            tensor.meta_tensor(), {{id, static_cast<int>(i)}}, program_.texts.at(id));
      }
    }
    slots.push_back(std::move(sum));
  }
  if (is_backward(id.kind)) {
    return {pack(slots), {}};
  }
  return {recorded.signature.filled(slots), recorded.requires_grad};
}

void StaticExchange::request(Task& task, const Fields& fields, int, Content content) {
  following(task, [&] { send(request_message(fields), fields, content); });
}

Content StaticExchange::response(Task& task, const Fields& fields, int owner) {
  const MessageId id = response_message(fields);
  bool waits = false;
  following(task, [&] {
    if (find(id) == nullptr) {
      throw UserError(
          str("module '",
              context_.modules->name_of(fields.module),
              "' gave no answer in the recorded steps",
              kStaticAdvice));
    }
    waits = program_.plan.received.at(id).waits;
    if (waits) {
      check_pause(task, id.call);
    }
  });
  if (waits) {
    control_.wait_for_answer(task, fields, context_.pp_ranks.at(owner));
  } else {
    ++task.turns; // the turn that would have begun here is joined to this one
  }
  take_count(find(id)->fields); // no answer carries it
  return receive(id);
}

template <typename Run>
void StaticExchange::following(const Task& task, const Run& run) {
  try {
    run();
  } catch (const UserError&) {
    // User code may catch this exception; the step fails all the same.
    control_.abort(error_text(
        std::current_exception(), context_.rank, task_text(task.request, *context_.modules)));
    throw;
  }
}

Content StaticExchange::arguments(Task& task) {
  return receive(request_message(task.request));
}

void StaticExchange::respond_failure(Task&, std::string text) {
  control_.abort(std::move(text)); // nobody waits for an answer
}

void StaticExchange::respond(Task& task, Content content) {
  send(response_message(task.request), task.request, content);
}

c10::IValue StaticExchange::read(c10::IValue value) {
  return map_tensors(value, [](const at::Tensor& tensor) {
    return read_tensor(tensor, "the step function's result");
  });
}

void StaticExchange::check_pause(const Task& task, std::uint64_t call) const {
  const auto found = program_.waits.find({task.id, static_cast<int>(task.turns)});
  if (found == program_.waits.end() || found->second.call != call) {
    throw UserError(
        str(call == 0 ? "model.backward" : "a module of another rank",
            " was called at another place than recorded",
            kStaticAdvice));
  }
}

void StaticExchange::before_schedule(const Task& task) {
  following(task, [&] { check_pause(task, 0); });
}

} // namespace tessera::runtime
