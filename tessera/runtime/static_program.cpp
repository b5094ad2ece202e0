#include "tessera/runtime/static_program.h"

#include <algorithm>

#include "tessera/tensor/value.h"
#include "tessera/transport/transport.h"

namespace tessera::runtime {

namespace {

const TensorForm& form_of(const Recording& recording, const Slot& slot) {
  const RecordedLeg& leg = recording.legs.at(slot.leg);
  const auto defined = slots_defined(slot.leg, leg.form);
  const auto before = std::count(defined.begin(), defined.begin() + slot.index, true);
  return leg.form.tensors().at(static_cast<std::size_t>(before));
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
    PacketForm& form = packets[id];
    std::vector<std::int64_t> sizes;
    for (const Slot& slot : packet.like) {
      form.tensors.push_back(form_of(this->recording, slot));
      sizes.push_back(form.tensors.back().bytes());
    }
    form.places = transport::packed_places(sizes);
  }
  for (const Turn& turn : order) {
    ++turns[turn.task];
  }
  for (const PlannedTurn& planned : this->plan.turns) {
    if (planned.turn.cause != Cause::kStart) {
      waits[{planned.turn.task, planned.turn.number}] = planned.turn.leg;
    }
  }
  for (const auto& [id, leg] : this->recording.legs) {
    if (!leg.sent) {
      texts[id] = std::make_shared<const std::string>(leg_text(id, leg.fields.module, modules));
    }
  }
}

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
  for_each_tensor(value, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

} // namespace tessera::runtime
