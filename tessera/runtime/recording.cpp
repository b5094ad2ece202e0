#include "tessera/runtime/recording.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/runtime/error_text.h"
#include "tessera/runtime/worker.h"
#include "tessera/tensor/value.h"

namespace tessera::runtime {

namespace {

const char* leg_name(Leg leg) {
  switch (leg) {
    case Leg::kArguments:
      return "the arguments of ";
    case Leg::kResults:
      return "the result of ";
    case Leg::kOutputGradients:
      return "the gradients for the result of ";
    case Leg::kInputGradients:
      return "the gradients of the arguments of ";
  }
  return "";
}

std::string call_text(const Fields& fields, const ModuleDirectory& modules) {
  std::string text = "module '" + modules.name_of(fields.module) + "'";
  if (fields.first >= 0) {
    text += str(", children ", fields.first, " to ", fields.last - 1);
  }
  return text;
}

std::string mode_text(const Fields& fields) {
  return str(
      fields.grad_enabled != 0 ? "gradients on" : "gradients off",
      fields.autocast != 0
          ? str(", autocast to ", c10::toString(static_cast<at::ScalarType>(fields.autocast_dtype)))
          : std::string());
}

} // namespace

std::string leg_text(const LegId& leg, int module, const ModuleDirectory& modules) {
  return leg_name(leg.leg) + ("module '" + modules.name_of(module) + "'");
}

std::optional<std::string>
fields_difference(const Fields& recorded, const Fields& found, const ModuleDirectory& modules) {
  if (recorded.module != found.module || recorded.first != found.first ||
      recorded.last != found.last) {
    return str(
        "it called ",
        call_text(found, modules),
        " where ",
        call_text(recorded, modules),
        " was recorded");
  }
  if (recorded.inputs_only != found.inputs_only) {
    return str(
        call_text(found, modules),
        found.inputs_only != 0 ? " was reached by torch::autograd::grad"
                               : " was reached by model.backward",
        " where the other was recorded");
  }
  if (recorded.invoker != found.invoker) {
    return str(
        "it called ", call_text(found, modules), " with arguments of other types than recorded");
  }
  if (recorded.grad_enabled != found.grad_enabled || recorded.autocast != found.autocast ||
      (recorded.autocast != 0 && recorded.autocast_dtype != found.autocast_dtype)) {
    return str(
        "it called ",
        call_text(found, modules),
        " with ",
        mode_text(found),
        " where ",
        mode_text(recorded),
        " was recorded");
  }
  return std::nullopt;
}

std::optional<std::string>
flow_difference(const Recording& recorded, const Recording& found, const ModuleDirectory& modules) {
  const auto where = [](const Fields& fields) {
    return str("microbatch ", fields.microbatch, ": ");
  };
  for (const auto& [id, leg] : found.legs) {
    const auto known = recorded.legs.find(id);
    if (known == recorded.legs.end()) {
      return str(
          where(leg.fields),
          leg_text(id, leg.fields.module, modules),
          leg.sent ? " were sent" : " came",
          ", which did not happen in the first recorded step");
    }
    if (const auto text = fields_difference(known->second.fields, leg.fields, modules)) {
      return where(leg.fields) + *text;
    }
    if (const auto text = known->second.form.difference(leg.form)) {
      return str(where(leg.fields), leg_text(id, leg.fields.module, modules), ": ", *text);
    }
    if (known->second.needs_grad != leg.needs_grad) {
      return str(
          where(leg.fields),
          leg_text(id, leg.fields.module, modules),
          ": other tensors need gradients than recorded");
    }
  }
  for (const auto& [id, leg] : recorded.legs) {
    if (!found.legs.contains(id)) {
      return str(
          where(leg.fields),
          leg_text(id, leg.fields.module, modules),
          leg.sent ? " were not sent" : " did not come",
          " in a later step, but in the first recorded one");
    }
  }
  return std::nullopt;
}

void Recording::keep_place(std::uint64_t task, int number) {
  const auto turn = std::find_if(turns.rbegin(), turns.rend(), [&](const Turn& candidate) {
    return candidate.task == task && candidate.number == number;
  });
  TESSERA_CHECK(turn != turns.rend(), "a turn that was not recorded");
  turn->keeps_place = true;
}

RankFlow flow_of(const Recording& recording) {
  RankFlow flow;
  flow.turns = recording.turns;
  for (const auto& [id, recorded] : recording.legs) {
    LegFlow leg;
    leg.id = id;
    leg.sent = recorded.sent;
    leg.peer = recorded.peer;
    flow.legs.push_back(std::move(leg));
    auto& slots = flow.legs.back().slots;
    if (is_backward(id.leg)) {
      for (const auto& element : recorded.form.structure().toTupleRef().elements()) {
        slots.emplace_back().defined = element.isTensor();
      }
    } else {
      for (const char mark : recorded.needs_grad) {
        slots.emplace_back().needs_grad = mark == '1';
      }
    }
    const ReadSlots* reads = recording.reads.get();
    for (int i = 0; i < static_cast<int>(slots.size()); ++i) {
      slots[i].read = reads == nullptr || reads->all || reads->slots.contains({id, i});
      if (!recorded.origins.empty()) {
        slots[i].origins = recorded.origins.at(i);
      }
    }
  }
  return flow;
}

RecordingExchange::RecordingExchange(
    Exchange& inner,
    Recording& recording,
    const std::vector<int>& pp_ranks)
    : inner_(inner), recording_(recording), pp_ranks_(pp_ranks) {
  if (recording.reads != nullptr) {
    watcher_ = std::make_unique<VerifyingMode>(recording.reads);
  }
}

int RecordingExchange::pp_rank_of(int rank) const {
  const auto found = std::find(pp_ranks_.begin(), pp_ranks_.end(), rank);
  TESSERA_CHECK(found != pp_ranks_.end());
  return static_cast<int>(found - pp_ranks_.begin());
}

RecordedLeg& RecordingExchange::note(
    const LegId& id,
    bool sent,
    int peer,
    const Fields& fields,
    const Content& content) {
  RecordedLeg leg;
  leg.sent = sent;
  leg.peer = peer;
  leg.fields = fields;
  leg.form = ValueForm(content.value);
  leg.needs_grad = content.needs_grad;
  return recording_.legs[id] = std::move(leg);
}

// What travels is what stand-ins stand for.
Content RecordingExchange::send(const LegId& id, int peer, const Fields& fields, Content content) {
  const DispatchScope unwatched(nullptr);
  RecordedLeg& leg = note(id, true, peer, fields, content);
  if (recording_.reads == nullptr) {
    return content;
  }
  const auto real = [&](const at::Tensor& tensor) {
    const StandIn* info = stand_in_of(tensor);
    leg.origins.emplace_back();
    if (info != nullptr && info->self == tensor.unsafeGetTensorImpl() &&
        info->reads == recording_.reads) {
      leg.origins.back() = info->origins;
      return info->real;
    }
    return read_tensor(tensor, "a call of a module on another rank");
  };
  if (!is_backward(id.leg)) {
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
  content = send(request_leg(fields), owner, fields, std::move(content));
  inner_.request(task, fields, owner, std::move(content));
}

Content RecordingExchange::response(Task& task, const Fields& fields, int owner) {
  try {
    Content content = inner_.response(task, fields, owner);
    const DispatchScope unwatched(nullptr);
    note(response_leg(fields), false, owner, fields, content);
    return content;
  } catch (const FailedElsewhere& error) {
    recording_.failed_call = error.what();
    throw;
  }
}

Content RecordingExchange::arguments(Task& task) {
  const DispatchScope unwatched(nullptr);
  Content content = inner_.arguments(task);
  note(request_leg(task.request), false, pp_rank_of(task.source), task.request, content);
  return content;
}

void RecordingExchange::respond(Task& task, Content content) {
  content =
      send(response_leg(task.request), pp_rank_of(task.source), task.request, std::move(content));
  inner_.respond(task, std::move(content));
}

c10::IValue RecordingExchange::hand_over(const LegId& leg, c10::IValue value) {
  if (recording_.reads == nullptr) {
    return value;
  }
  const DispatchScope unwatched(nullptr);
  int index = 0;
  if (!is_backward(leg.leg)) {
    return map_tensors(value, [&](const at::Tensor& tensor) {
      return verifying_stand_in(tensor, {{leg, index++}}, recording_.reads, false);
    });
  }
  auto gradients = unpack<std::vector<at::Tensor>>(value);
  for (at::Tensor& gradient : gradients) {
    if (gradient.defined()) {
      gradient = verifying_stand_in(gradient, {{leg, index}}, recording_.reads, true);
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

} // namespace tessera::runtime
