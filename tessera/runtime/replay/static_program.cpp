#include "tessera/runtime/replay/static_program.h"

#include <algorithm>

#include "tessera/tensor/value.h"
#include "tessera/transport/transport.h"

namespace tessera::runtime {

namespace {

const TensorSignature& signature_of(const Recording& recording, const Slot& slot) {
  const RecordedMessage& message = recording.messages.at(slot.message);
  const auto defined = slots_defined(slot.message, message.signature);
  const auto before = std::count(defined.begin(), defined.begin() + slot.index, true);
  return message.signature.tensors().at(static_cast<std::size_t>(before));
}

} // namespace

StaticProgram::StaticProgram(
    int number,
    RankPlan plan,
    Recording recording,
    const std::vector<Turn>& order,
    const ModuleDirectory& modules)
    : number(number), plan(std::move(plan)), recording(std::move(recording)) {
  for (const auto& [id, packet] : this->plan.packets) {
    PacketLayout& layout = packets[id];
    std::vector<std::int64_t> sizes;
    for (const Slot& slot : packet.like) {
      layout.tensors.push_back(signature_of(this->recording, slot));
      sizes.push_back(layout.tensors.back().bytes());
    }
    layout.places = transport::packed_places(sizes);
  }
  for (const Turn& turn : order) {
    ++turns[turn.task];
  }
  for (const PlannedTurn& planned : this->plan.turns) {
    if (planned.turn.cause != Cause::kStart) {
      waits[{planned.turn.task, planned.turn.number}] = planned.turn.message;
    }
  }
  for (const auto& [id, message] : this->recording.messages) {
    if (!message.sent) {
      texts[id] =
          std::make_shared<const std::string>(message_text(id, message.fields.module, modules));
    }
  }
}

std::vector<bool> slots_defined(const MessageId& id, const ValueSignature& form) {
  if (!is_backward(id.kind)) {
    return std::vector<bool>(form.tensors().size(), true);
  }
  std::vector<bool> defined;
  for (const auto& element : form.structure().toTupleRef().elements()) {
    defined.push_back(element.isTensor());
  }
  return defined;
}

std::vector<at::Tensor> slots_of(const MessageId& id, const c10::IValue& value) {
  if (is_backward(id.kind)) {
    return unpack<std::vector<at::Tensor>>(value);
  }
  std::vector<at::Tensor> tensors;
  for_each_tensor(value, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

} // namespace tessera::runtime
