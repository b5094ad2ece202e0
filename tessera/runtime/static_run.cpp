#include "tessera/runtime/static_run.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/runtime/call_record.h"
#include "tessera/runtime/server.h"
#include "tessera/runtime/stand_in.h"
#include "tessera/tensor/value.h"

namespace tessera::runtime {

const char* const kStaticAdvice =
    "; static_mode repeats its recorded steps, so every step must call the "
    "same modules with the same shapes: drop a smaller last batch, give "
    "changing numbers as tensors; or give this step the option static_mode = "
    "false, or write \"static_mode\": false";

StaticExchange::StaticExchange(
    Server& server,
    transport::Transport& transport,
    const ModuleDirectory& modules,
    const std::vector<int>& pp_ranks,
    const StaticProgram& program,
    std::int64_t serial)
    : server_(server),
      transport_(transport),
      modules_(modules),
      pp_ranks_(pp_ranks),
      program_(program),
      serial_(serial),
      store_(program) {}

const PlannedTurn* StaticExchange::next_turn() const {
  const auto& turns = program_.plan.turns;
  return next_ < turns.size() ? &turns[next_] : nullptr;
}

const PlannedTurn* StaticExchange::ready_turn() {
  const PlannedTurn* turn = next_turn();
  if (turn != nullptr) {
    for (const LegId& packet : turn->needs) {
      if (!store_.has(packet)) {
        return nullptr;
      }
    }
  }
  return turn;
}

Fields StaticExchange::fields_of(const PlannedTurn& turn) const {
  Fields fields = program_.recording.legs.at(turn.turn.leg).fields;
  fields.serial = serial_;
  return fields;
}

void StaticExchange::take(const Fields& fields, const c10::IValue& body) {
  store_.put({fields.call, static_cast<Leg>(fields.leg)}, body.toTensor());
}

const RecordedLeg* StaticExchange::find(const LegId& id) const {
  const auto found = program_.recording.legs.find(id);
  return found == program_.recording.legs.end() ? nullptr : &found->second;
}

std::string StaticExchange::text(const LegId& id, const Fields& fields) const {
  return leg_text(id, fields.module, modules_);
}

void StaticExchange::check_same(const LegId& id, const Fields& fields, const Content& content)
    const {
  const RecordedLeg* recorded = find(id);
  if (recorded == nullptr) {
    throw UserError(
        str(text(id, fields), " are to be sent, which no recorded step did", kStaticAdvice));
  }
  if (const auto difference = fields_difference(recorded->fields, fields, modules_)) {
    throw UserError(*difference + kStaticAdvice);
  }
  if (const auto difference = recorded->form.difference(content.value)) {
    throw UserError(str(text(id, fields), ": ", *difference, kStaticAdvice));
  }
  if (recorded->needs_grad != content.needs_grad) {
    throw UserError(
        str(text(id, fields),
            ": of its tensors ",
            content.needs_grad,
            " need gradients (1: does) where ",
            recorded->needs_grad,
            " was recorded",
            kStaticAdvice));
  }
}

// A slot that a stand-in took when it was recorded must have the same one now:
// the numbers come from elsewhere.
void StaticExchange::check_origins(
    const LegId& id,
    const Fields& fields,
    const std::vector<at::Tensor>& tensors) const {
  const auto& made = program_.plan.sent.at(id).made;
  const auto& origins = program_.recording.legs.at(id).origins;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const StandIn* info = stand_in_of(tensors[i]);
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

void StaticExchange::send(const LegId& id, const Fields& fields, const Content& content) {
  check_same(id, fields, content);
  const std::vector<at::Tensor> tensors = slots_of(id, content.value);
  check_origins(id, fields, tensors);
  Fields header;
  header.kind = Kind::kPacket;
  header.leg = static_cast<std::uint8_t>(id.leg);
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
    if (pp_ranks_.at(outgoing.peer) == server_.rank()) {
      for (at::Tensor& tensor : packet) {
        tensor = tensor.clone(); // the module may write into its own later
      }
      store_.put(id, std::move(packet));
    } else {
      transport_.send_packed(pp_ranks_[outgoing.peer], to_header(header), packet);
    }
  }
}

Content StaticExchange::receive(const LegId& id) {
  const RecordedLeg& recorded = program_.recording.legs.at(id);
  const auto defined = slots_defined(id, recorded.form);
  std::size_t tensor_at = 0;
  const auto& places = program_.plan.received.at(id).places;
  std::vector<at::Tensor> slots;
  for (std::size_t i = 0; i < places.size(); ++i) {
    at::Tensor sum;
    for (const PacketPlace& place : places[i]) {
      const bool may_change = id.leg == Leg::kResults;
      const at::Tensor part = store_.take(place, may_change);
      sum = sum.defined() ? sum + part : part;
    }
    if (defined.at(i)) {
      const TensorForm& form = recorded.form.tensors().at(tensor_at++);
      if (!sum.defined()) {
        sum = static_stand_in(form.stand_in(), {{id, static_cast<int>(i)}}, program_.texts.at(id));
      }
    }
    slots.push_back(std::move(sum));
  }
  if (is_backward(id.leg)) {
    return {pack(slots), {}};
  }
  return {recorded.form.filled(slots), recorded.needs_grad};
}

void StaticExchange::request(Task& task, const Fields& fields, int owner, Content content) {
  (void)owner;
  following(task, [&] { send(request_leg(fields), fields, content); });
}

Content StaticExchange::response(Task& task, const Fields& fields, int owner) {
  const LegId id = response_leg(fields);
  bool waits = false;
  following(task, [&] {
    if (find(id) == nullptr) {
      throw UserError(
          str("module '",
              modules_.name_of(fields.module),
              "' gave no answer in the recorded steps",
              kStaticAdvice));
    }
    waits = program_.plan.received.at(id).waits;
    if (waits) {
      check_pause(task, id.call);
    }
  });
  if (waits) {
    server_.wait_for_answer(task, fields, owner);
  } else {
    ++task.turns; // the turn that would have begun here is joined to this one
  }
  return receive(id);
}

template <typename Run>
void StaticExchange::following(const Task& task, const Run& run) {
  try {
    run();
  } catch (const UserError&) {
    server_.left_program(task);
    throw;
  }
}

Content StaticExchange::arguments(Task& task) {
  return receive(request_leg(task.request));
}

void StaticExchange::respond(Task& task, Content content) {
  send(response_leg(task.request), task.request, content);
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

void StaticExchange::check_finished(const Task& task) const {
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

} // namespace tessera::runtime
