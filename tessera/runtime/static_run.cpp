#include "tessera/runtime/static_run.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/runtime/call_record.h"
#include "tessera/runtime/server.h"
#include "tessera/runtime/stand_in.h"
#include "tessera/tensor/value.h"

namespace tessera::runtime {

namespace {

// Missing gradients are slots without a tensor.
std::vector<bool> slots_defined(const LegId& id, const ValueForm& form) {
  if (!is_backward(id.leg)) {
    return std::vector<bool>(form.tensors().size(), true);
  }
  std::vector<bool> defined;
  for (const auto& element : form.structure().toTupleRef().elements()) {
    defined.push_back(element.isTensor());
  }
  return defined;
}

std::vector<at::Tensor> slots_of(const LegId& id, const c10::IValue& value) {
  if (is_backward(id.leg)) {
    return unpack<std::vector<at::Tensor>>(value);
  }
  std::vector<at::Tensor> tensors;
  for_each_tensor(
      value, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

} // namespace

const char* const kStaticAdvice =
    "; static_mode repeats its recorded steps, so every step must call the "
    "same modules with the same shapes (drop a smaller last batch, give "
    "changing numbers as tensors), or write \"static_mode\": false";

void PacketStore::put(const LegId& packet, at::Tensor bytes) {
  const auto plan = program_.plan.packets.find(packet);
  TESSERA_CHECK(
      plan != program_.plan.packets.end(), "a packet that nobody takes");
  std::vector<std::int64_t> sizes;
  for (const Slot& slot : plan->second.like) {
    sizes.push_back(form_of(slot).bytes());
  }
  const auto places = transport::packed_places(sizes);
  if (bytes.scalar_type() != at::kByte || bytes.numel() != places.back()) {
    throw CommError(tessera::str(
        "a packet of ",
        bytes.numel(),
        " bytes came where ",
        places.back(),
        " were planned"));
  }
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const TensorForm& form = form_of(plan->second.like[i]);
    const auto element =
        static_cast<std::int64_t>(c10::elementSize(form.dtype));
    tensors.push_back(at::empty({0}, bytes.options().dtype(form.dtype)));
    std::vector<std::int64_t> strides(form.sizes.size(), 1);
    for (std::size_t d = strides.size(); d-- > 1;) {
      strides[d - 1] = strides[d] * std::max<std::int64_t>(form.sizes[d], 1);
    }
    tensors.back().set_(
        bytes.storage(),
        (bytes.storage_offset() + places[i]) / element,
        form.sizes,
        strides);
  }
  keep(packet, std::move(tensors));
}

void PacketStore::put(const LegId& packet, std::vector<at::Tensor> tensors) {
  keep(packet, std::move(tensors));
}

void PacketStore::keep(const LegId& packet, std::vector<at::Tensor> tensors) {
  Arrived arrived;
  arrived.tensors = std::move(tensors);
  arrived.uses = program_.plan.packets.at(packet).uses;
  for (const int uses : arrived.uses) {
    arrived.left += uses;
  }
  const bool fresh = arrived_.emplace(packet, std::move(arrived)).second;
  TESSERA_CHECK(fresh, "a packet came twice");
}

const TensorForm& PacketStore::form_of(const Slot& slot) const {
  const RecordedLeg& leg = program_.recording.legs.at(slot.leg);
  const auto defined = slots_defined(slot.leg, leg.form);
  const auto before =
      std::count(defined.begin(), defined.begin() + slot.index, true);
  return leg.form.tensors().at(static_cast<std::size_t>(before));
}

at::Tensor PacketStore::take(const PacketPlace& place, bool may_change) {
  const auto found = arrived_.find(place.leg);
  TESSERA_CHECK(found != arrived_.end(), "a packet is not there");
  Arrived& arrived = found->second;
  const bool shared = program_.plan.packets.at(place.leg).uses[place.at] > 1;
  at::Tensor& tensor = arrived.tensors.at(place.at);
  // Requests of modules may not change what they were given, so they share it.
  at::Tensor own = tensor;
  if (shared) {
    own = may_change ? tensor.clone() : tensor.detach();
  }
  if (--arrived.uses[place.at] == 0) {
    tensor = at::Tensor();
  }
  if (--arrived.left == 0) {
    arrived_.erase(found);
  }
  return own;
}

StaticExchange::StaticExchange(
    Server& server,
    transport::Transport& transport,
    const ModuleTable& modules,
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

// A slot that a stand-in took when it was recorded must have the same one now:
// the numbers come from elsewhere.
void StaticExchange::check_origins(
    const LegId& id,
    const std::string& what,
    const std::vector<at::Tensor>& tensors) const {
  const auto& made = program_.plan.sent.at(id).made;
  const auto& origins = program_.recording.legs.at(id).origins;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (made.at(i)) {
      read_tensor(tensors[i], what); // no stand-in
      continue;
    }
    const StandIn* info = stand_in_of(tensors[i]);
    if (info == nullptr || info->origins != origins.at(i)) {
      throw UserError(
          str(what,
              ": tensor ",
              i,
              " is not the one that was handed on in the recorded steps",
              kStaticAdvice));
    }
  }
}

void StaticExchange::send(
    const LegId& id,
    const Fields& fields,
    const Content& content) {
  const RecordedLeg* recorded = find(id);
  const std::string what = leg_text(id, fields.module, modules_);
  if (recorded == nullptr) {
    throw UserError(str(
        what, " are to be sent, which no recorded step did", kStaticAdvice));
  }
  if (const auto text = fields_difference(recorded->fields, fields, modules_)) {
    throw UserError(*text + kStaticAdvice);
  }
  if (const auto text = recorded->form.difference(content.value)) {
    throw UserError(str(what, ": ", *text, kStaticAdvice));
  }
  if (recorded->needs_grad != content.needs_grad) {
    throw UserError(
        str(what,
            ": of its tensors ",
            content.needs_grad,
            " need gradients (1: does) where ",
            recorded->needs_grad,
            " was recorded",
            kStaticAdvice));
  }
  const std::vector<at::Tensor> tensors = slots_of(id, content.value);
  check_origins(id, what, tensors);
  const SentLeg& plan = program_.plan.sent.at(id);
  Fields header;
  header.kind = Kind::kPacket;
  header.leg = static_cast<std::uint8_t>(id.leg);
  header.call = id.call;
  header.microbatch = fields.microbatch;
  header.module = fields.module;
  header.serial = serial_;
  header.program = program_.number;
  for (const Outgoing& outgoing : plan.outgoing) {
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
      transport_.send_packed(
          pp_ranks_[outgoing.peer], to_header(header), packet);
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
        sum = static_stand_in(
            form.stand_in(),
            {{id, static_cast<int>(i)}},
            program_.texts.at(id));
      }
    }
    slots.push_back(std::move(sum));
  }
  if (is_backward(id.leg)) {
    return {pack(slots), {}};
  }
  return {recorded.form.filled(slots), recorded.needs_grad};
}

void StaticExchange::request(
    Task& task,
    const Fields& fields,
    int owner,
    Content content) {
  (void)task;
  (void)owner;
  send(request_leg(fields), fields, content);
}

Content StaticExchange::response(Task& task, const Fields& fields, int owner) {
  const LegId id = response_leg(fields);
  if (find(id) == nullptr) {
    throw UserError(
        str("module '",
            modules_.name_of(fields.module),
            "' gave no answer in the recorded steps",
            kStaticAdvice));
  }
  if (program_.plan.received.at(id).waits) {
    server_.wait_for_answer(task, fields, owner);
  } else {
    ++task.turns; // the turn that would have begun here is joined to this one
  }
  return receive(id);
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

void StaticExchange::check_pause(const Task& task) const {
  const auto found =
      program_.waits.find({task.id, static_cast<int>(task.turns)});
  if (found == program_.waits.end() || found->second.call != task.awaits) {
    throw UserError(
        str(task.awaits == 0 ? std::string("model.backward was called")
                             : str("module '",
                                   modules_.name_of(task.awaits_module),
                                   "' was called"),
            " at another place than recorded",
            kStaticAdvice));
  }
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
