// StateLayout for optimizers: each parameter has several tensors and numbers as its state, and
// belongs to a parameter group.
#include <algorithm>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/state/layout.h"
#include "tessera/tensor/value.h"

namespace tessera::state {

namespace {

std::map<std::string, int> groups_of(const OptimizerState& state) {
  std::map<std::string, int> groups;
  for (std::size_t i = 0; i < state.groups.size(); ++i) {
    for (const std::string& name : state.groups[i].parameters) {
      groups[name] = static_cast<int>(i);
    }
  }
  return groups;
}

OptimizerState without_parameters(const OptimizerState& state) {
  OptimizerState empty;
  empty.kind = state.kind;
  for (const auto& group : state.groups) {
    empty.groups.push_back({{}, group.options});
  }
  return empty;
}

// One parameter on one rank: its group, and its state.
using PackedParameter = std::tuple<int, Fields>;

at::Tensor on_host(const c10::IValue& value) {
  return value.toTensor().detach().cpu();
}

} // namespace

// A hook moves elements. Where the numbers of parameter i end up is found by
// letting it move tensors that are filled with i.
const std::map<std::string, std::vector<std::string>>& StateLayout::origins(
    const Unit& unit) const {
  if (!unit.origins.empty()) {
    return unit.origins;
  }
  std::vector<std::string> names;
  TensorMap labels;
  for (const auto& [name, by_rank] : unit.held) {
    labels[name] = at::full(
        by_rank.begin()->second.shard.full_sizes, static_cast<double>(names.size()), at::kFloat);
    names.push_back(name);
  }
  for (const auto& [name, tensor] : to_original(unit, labels)) {
    auto& made_of = unit.origins[name];
    if (tensor.numel() == 0) {
      continue;
    }
    const int least = tensor.min().item<int>();
    const int most = tensor.max().item<int>();
    for (int i = least; i <= most; ++i) {
      if (i == least || i == most || tensor.eq(i).any().item<bool>()) {
        made_of.push_back(names.at(i));
      }
    }
  }
  return unit.origins;
}

/// What the ranks of a unit's group hold of its optimizer state.
struct StateLayout::UnitState {
  std::map<std::string, int> groups; // by held name
  std::map<std::string, Fields> common; // fields that are not divided, by held name
  std::map<std::string, std::vector<TensorMap>> divided; // by field, then by rank
  std::set<std::string> stated; // held names with any state
};

StateLayout::UnitState StateLayout::gather_unit_state(const Unit& unit, const OptimizerState& local)
    const {
  comm::ProcessGroup& group = group_of(unit);
  const auto groups = groups_of(local);
  std::map<std::string, c10::IValue> mine;
  for (const std::string& name : unit.here) {
    const std::string local_name = join_path(unit.path, name);
    const auto at = groups.find(local_name);
    if (at == groups.end()) {
      continue; // a buffer, or not optimized
    }
    const auto fields = local.parameters.find(local_name);
    mine[name] = pack(
        PackedParameter(at->second, fields == local.parameters.end() ? Fields() : fields->second));
  }
  UnitState gathered;
  const auto all = comm::all_gather_object(*context_.world, group, pack(mine));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const int tp = context_.layout->coordinates(group.ranks()[rank]).tp;
    for (const auto& [name, value] : unpack<std::map<std::string, c10::IValue>>(all[rank])) {
      const auto [index, fields] = unpack<PackedParameter>(value);
      gathered.groups[name] = index;
      const nn::Shard& shard = unit.held.at(name).at(tp).shard;
      for (const auto& [field, content] : fields) {
        gathered.stated.insert(name);
        if (content.isTensor() && content.toTensor().sizes() == shard.local_sizes) {
          auto& by_rank = gathered.divided[field];
          by_rank.resize(all.size());
          by_rank[rank].emplace(name, on_host(content));
        } else {
          gathered.common[name][field] = content;
        }
      }
    }
  }
  return gathered;
}

// Whole tensors of one field, from what each rank gave of it.
TensorMap StateLayout::whole_field(const Unit& unit, const std::vector<TensorMap>& by_rank) const {
  TensorMap full = assemble(unit, by_rank);
  const at::TensorOptions like = full.begin()->second.options();
  for (const auto& [name, held] : unit.held) {
    if (full.count(name) == 0) { // that parameter has had no gradient yet
      full[name] = at::zeros(held.begin()->second.shard.full_sizes, like);
    }
  }
  return to_original(unit, full);
}

// The group of a whole parameter, which all that it is made of must share; nullopt when it is not
// optimized.
std::optional<int> StateLayout::group_of_whole(
    const Unit& unit,
    const UnitState& state,
    const std::string& name) const {
  const auto from = origins(unit).find(name);
  if (from == origins(unit).end() || from->second.empty() ||
      state.groups.count(from->second.front()) == 0) {
    return std::nullopt;
  }
  const int index = state.groups.at(from->second.front());
  for (const std::string& origin : from->second) {
    if (state.groups.count(origin) == 0 || state.groups.at(origin) != index) {
      throw CheckpointError(
          str("the optimizer has parts of '",
              join_path(unit.path, name),
              "' in different groups: ",
              from->second.front(),
              " and ",
              origin,
              " of its distributed module; put both into one group"));
    }
  }
  return index;
}

void StateLayout::share_unit_state(
    const Unit& unit,
    const OptimizerState& local,
    OptimizerState& share) const {
  const UnitState state = gather_unit_state(unit, local);
  std::map<std::string, TensorMap> whole; // by field
  for (const auto& [field, by_rank] : state.divided) {
    whole[field] = whole_field(unit, by_rank);
  }
  comm::ProcessGroup& group = group_of(unit);
  int turn = 0;
  for (const Whole& entry : unit.whole) {
    const auto index = group_of_whole(unit, state, entry.name);
    if (!index || turn++ % group.size() != group.rank()) {
      continue;
    }
    const std::string name = join_path(unit.path, entry.name);
    share.groups.at(*index).parameters.push_back(name);
    const auto& made_of = origins(unit).at(entry.name);
    const auto stated = std::find_if(made_of.rbegin(), made_of.rend(), [&](const auto& origin) {
      return state.stated.contains(origin);
    });
    if (stated == made_of.rend()) {
      continue;
    }
    Fields& fields = share.parameters[name];
    const auto common = state.common.find(*stated);
    if (common != state.common.end()) {
      fields = common->second;
    }
    for (const auto& [field, tensors] : whole) {
      fields[field] = tensors.at(entry.name).contiguous();
    }
  }
}

OptimizerState StateLayout::whole_share(const OptimizerState& local) const {
  comm::ProcessGroup& tp = context_.group(Group::kTP);
  OptimizerState share = without_parameters(local);
  int turn = 0;
  for (std::size_t i = 0; i < local.groups.size(); ++i) {
    for (const std::string& name : local.groups[i].parameters) {
      if (unit_of(name) != nullptr || turn++ % tp.size() != tp.rank()) {
        continue;
      }
      share.groups[i].parameters.push_back(name);
      const auto fields = local.parameters.find(name);
      if (fields != local.parameters.end()) {
        share.parameters.insert(*fields);
      }
    }
  }
  for (const Unit& unit : units_) {
    if (unit.mine || unit.spans_pipeline) {
      share_unit_state(unit, local, share);
    }
  }
  return share;
}

// A rank may be given what its own local_state_dict was: known by names that
// only the distributed module has, or by tensors of the shards' sizes.
bool StateLayout::take_own_state(
    const Unit& unit,
    const OptimizerState& given,
    const std::map<std::string, int>& groups,
    OptimizerState& local) const {
  std::set<std::string> whole;
  for (const Whole& entry : unit.whole) {
    whole.insert(entry.name);
  }
  const int tp = tp_rank();
  bool own = false;
  for (const std::string& name : unit.here) {
    const std::string local_name = join_path(unit.path, name);
    own = own || (groups.count(local_name) != 0 && whole.count(name) == 0);
    const auto fields = given.parameters.find(local_name);
    const nn::Shard& shard = unit.held.at(name).at(tp).shard;
    if (fields == given.parameters.end() || shard.local_sizes == shard.full_sizes) {
      continue;
    }
    for (const auto& [field, content] : fields->second) {
      own = own || (content.isTensor() && content.toTensor().sizes() == shard.local_sizes);
    }
  }
  if (!own) {
    return false;
  }
  for (const std::string& name : unit.here) {
    const std::string local_name = join_path(unit.path, name);
    const auto at = groups.find(local_name);
    if (at != groups.end()) {
      local.groups.at(at->second).parameters.push_back(local_name);
    }
    const auto fields = given.parameters.find(local_name);
    if (fields != given.parameters.end()) {
      local.parameters.insert(*fields);
    }
  }
  return true;
}

// This rank's layout of the fields that are divided, by field, from the whole tensors of each.
std::map<std::string, TensorMap> StateLayout::divided_fields(
    const Unit& unit,
    const OptimizerState& whole) const {
  std::map<std::string, TensorMap> divided;
  for (const Whole& entry : unit.whole) {
    const auto fields = whole.parameters.find(join_path(unit.path, entry.name));
    if (fields == whole.parameters.end()) {
      continue;
    }
    for (const auto& [field, content] : fields->second) {
      if (content.isTensor() && content.toTensor().sizes() == entry.sizes) {
        divided[field][entry.name] = content.toTensor();
      }
    }
  }
  for (auto& [field, tensors] : divided) {
    const at::TensorOptions like = tensors.begin()->second.options();
    for (const Whole& entry : unit.whole) {
      if (tensors.count(entry.name) == 0) {
        tensors[entry.name] = at::zeros(entry.sizes, like);
      }
    }
    tensors = to_distributed(unit, tensors);
  }
  return divided;
}

void StateLayout::take_unit_state(
    const Unit& unit,
    const OptimizerState& whole,
    OptimizerState& local) const {
  const auto groups = groups_of(whole);
  if (take_own_state(unit, whole, groups, local)) {
    return;
  }
  const auto divided = divided_fields(unit, whole);
  for (const auto& [name, made_of] : origins(unit)) {
    const std::string whole_name = join_path(unit.path, name);
    const auto at = groups.find(whole_name);
    const auto fields = whole.parameters.find(whole_name);
    for (const std::string& held : made_of) {
      if (unit.here.count(held) == 0) {
        continue;
      }
      const std::string local_name = join_path(unit.path, held);
      if (at != groups.end()) {
        auto& names = local.groups.at(at->second).parameters;
        if (std::find(names.begin(), names.end(), local_name) == names.end()) {
          names.push_back(local_name);
        }
      }
      if (fields == whole.parameters.end()) {
        continue;
      }
      Fields& mine = local.parameters[local_name];
      for (const auto& [field, content] : fields->second) {
        const auto parts = divided.find(field);
        if (parts == divided.end()) {
          mine[field] = content.isTensor() ? c10::IValue(content.toTensor().clone()) : content;
        } else {
          const nn::Shard& shard = unit.held.at(held).at(tp_rank()).shard;
          mine[field] = nn::take_shard(shard, parts->second.at(held));
        }
      }
    }
  }
}

OptimizerState StateLayout::to_local(const OptimizerState& whole) const {
  OptimizerState local = without_parameters(whole);
  // What is not distributed is taken as it is.
  for (std::size_t i = 0; i < whole.groups.size(); ++i) {
    for (const std::string& name : whole.groups[i].parameters) {
      if (unit_of(name) == nullptr) {
        local.groups[i].parameters.push_back(name);
      }
    }
  }
  for (const auto& [name, fields] : whole.parameters) {
    if (unit_of(name) == nullptr) {
      local.parameters.emplace(name, fields);
    }
  }
  for (const Unit& unit : units_) {
    if (unit.mine) {
      take_unit_state(unit, whole, local);
    }
  }
  return local;
}

} // namespace tessera::state
