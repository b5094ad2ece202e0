#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/runtime/module_directory.h"
#include "tessera/runtime/replay/recording.h"
#include "tessera/runtime/replay/static_plan.h"

namespace tessera::runtime {

/// What a rank repeats in every static step of one kind.
struct StaticProgram {
  struct PacketLayout {
    std::vector<TensorSignature> tensors;
    std::vector<std::int64_t> places; // see transport::packed_places
  };

  /// `number` is that of the kind of step, equal on all ranks, `recording` that of the first
  /// recorded step, `order` that of the chosen step.
  StaticProgram(
      int number,
      RankPlan plan,
      Recording recording,
      const std::vector<Turn>& order,
      const ModuleDirectory& modules);

  int number = 0;
  RankPlan plan;
  Recording recording; // shapes, types, fields
  std::map<MessageId, PacketLayout> packets; // that come here
  /// For each task, how often it gets the baton, joined turns included.
  std::map<std::uint64_t, int> turns;
  /// For each task and turn, what the task waits for before it; joined turns are left out.
  std::map<std::pair<std::uint64_t, int>, MessageId> waits;
  /// Received messages, in words for errors.
  std::map<MessageId, std::shared_ptr<const std::string>> texts;
};

/// Returns which slots of a message hold a tensor, since gradients may be missing.
std::vector<bool> slots_defined(const MessageId& id, const ValueSignature& form);

/// Returns the slots of a message's value; a tensor is undefined where its gradient is missing.
std::vector<at::Tensor> slots_of(const MessageId& id, const c10::IValue& value);

} // namespace tessera::runtime
