#include "tessera/runtime/replay/recording.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::runtime {

namespace {

const char* message_name(CallMessage message) {
  switch (message) {
    case CallMessage::kArguments:
      return "the arguments of ";
    case CallMessage::kResults:
      return "the result of ";
    case CallMessage::kOutputGradients:
      return "the gradients for the result of ";
    case CallMessage::kInputGradients:
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
      fields.grad_enabled ? "gradients on" : "gradients off",
      fields.autocast ? str(", autocast to ", c10::toString(fields.autocast_dtype))
                      : std::string());
}

// Returns which of the fixed fields differ, except for the step.
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
        found.inputs_only ? " was reached by torch::autograd::grad"
                          : " was reached by model.backward",
        " where the other was recorded");
  }
  if (recorded.random_used != found.random_used) {
    return str(
        "before ",
        call_text(found, modules),
        " there were ",
        found.random_used,
        " dropouts where ",
        recorded.random_used,
        " were recorded");
  }
  if (recorded.invoker != found.invoker) {
    return str(
        "it called ", call_text(found, modules), " with arguments of other types than recorded");
  }
  if (recorded.grad_enabled != found.grad_enabled || recorded.autocast != found.autocast ||
      (recorded.autocast && recorded.autocast_dtype != found.autocast_dtype)) {
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

} // namespace

const char* const kStaticAdvice =
    "; static_mode repeats its recorded steps, so every step must call the "
    "same modules with the same shapes: drop a smaller last batch, give "
    "changing numbers as tensors; or give this step the option static_mode = "
    "false, or write \"static_mode\": false";

std::string message_text(const MessageId& message, int module, const ModuleDirectory& modules) {
  return message_name(message.kind) + ("module '" + modules.name_of(module) + "'");
}

std::optional<std::string> message_difference(
    const MessageId& id,
    const RecordedMessage& recorded,
    const Fields& fields,
    const std::optional<std::string>& value_difference,
    const RequiresGradMask& requires_grad,
    const ModuleDirectory& modules) {
  if (auto difference = fields_difference(recorded.fields, fields, modules)) {
    return difference;
  }
  const std::string text = message_text(id, fields.module, modules);
  if (value_difference) {
    return str(text, ": ", *value_difference);
  }
  if (recorded.requires_grad != requires_grad) {
    return str(
        text,
        ": of its tensors ",
        requires_grad.to_text(),
        " need gradients (1: does) where ",
        recorded.requires_grad.to_text(),
        " was recorded; parameters are frozen and thawed (requires_grad) on every rank, outside "
        "of the step function: such a step is then recorded anew");
  }
  return std::nullopt;
}

std::optional<std::string>
flow_difference(const Recording& recorded, const Recording& found, const ModuleDirectory& modules) {
  const auto where = [](const Fields& fields) {
    return str("microbatch ", fields.microbatch, ": ");
  };
  for (const auto& [id, message] : found.messages) {
    const auto known = recorded.messages.find(id);
    if (known == recorded.messages.end()) {
      return str(
          where(message.fields),
          message_text(id, message.fields.module, modules),
          message.sent ? " were sent" : " came",
          ", which did not happen in the first recorded step");
    }
    const auto value = known->second.signature.difference(message.signature);
    if (const auto text = message_difference(
            id, known->second, message.fields, value, message.requires_grad, modules)) {
      return where(message.fields) + *text;
    }
  }
  for (const auto& [id, message] : recorded.messages) {
    if (!found.messages.contains(id)) {
      return str(
          where(message.fields),
          message_text(id, message.fields.module, modules),
          message.sent ? " were not sent" : " did not come",
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
  for (const auto& [id, recorded] : recording.messages) {
    MessageFlow message;
    message.id = id;
    message.sent = recorded.sent;
    message.peer = recorded.peer;
    flow.messages.push_back(std::move(message));
    auto& slots = flow.messages.back().slots;
    if (is_backward(id.kind)) {
      for (const auto& element : recorded.signature.structure().toTupleRef().elements()) {
        slots.emplace_back().defined = element.isTensor();
      }
    } else {
      for (std::size_t i = 0; i < recorded.requires_grad.size(); ++i) {
        slots.emplace_back().requires_grad = recorded.requires_grad[i];
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

} // namespace tessera::runtime
