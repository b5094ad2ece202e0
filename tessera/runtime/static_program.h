#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/runtime/module_directory.h"
#include "tessera/runtime/recording.h"
#include "tessera/runtime/static_plan.h"

namespace tessera::runtime {

/// What a rank repeats in every static step of one kind.
struct StaticProgram {
  struct PacketForm {
    std::vector<TensorForm> tensors;
    std::vector<std::int64_t> places; // see transport::packed_places
  };

  /// `number`: of the kind of step, equal on all ranks. `recording`: of the
  /// first recorded step. `order`: of the chosen one.
  StaticProgram(
      int number,
      RankPlan plan,
      Recording recording,
      const std::vector<Turn>& order,
      const ModuleDirectory& modules);

  int number = 0;
  RankPlan plan;
  Recording recording; // shapes, types, fields
  std::map<LegId, PacketForm> packets; // that come here
  /// By task: how often it gets the baton, joined turns included.
  std::map<std::uint64_t, int> turns;
  /// By task and turn: what the task waits for before it; no joined turns.
  std::map<std::pair<std::uint64_t, int>, LegId> waits;
  /// Received legs in words.
  std::map<LegId, std::shared_ptr<const std::string>> texts;
};

/// Which slots of a leg hold a tensor: gradients may be missing.
std::vector<bool> slots_defined(const LegId& id, const ValueForm& form);

/// The slots of a leg's value; undefined where a gradient is missing.
std::vector<at::Tensor> slots_of(const LegId& id, const c10::IValue& value);

} // namespace tessera::runtime
