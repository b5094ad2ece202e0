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

void StateLayout::share_unit_state(
    const Unit& unit,
    const OptimizerState& local,
    OptimizerState& share) const {
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
  // Every rank's part: where each parameter is, and each field's tensors.
  std::map<std::string, int> group_of_name;
  std::map<std::string, Fields> common; // not divided, by parameter
  std::map<std::string, std::vector<TensorMap>> divided; // by field, by rank
  std::set<std::string> with_state;
  const auto all = comm::all_gather_object(*context_.world, group, pack(mine));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const int tp = context_.layout->coordinates(group.ranks()[rank]).tp;
    for (const auto& [name, value] : unpack<std::map<std::string, c10::IValue>>(all[rank])) {
      const auto [index, fields] = unpack<PackedParameter>(value);
      group_of_name[name] = index;
      const nn::Shard& shard = unit.held.at(name).at(tp).shard;
      for (const auto& [field, content] : fields) {
        with_state.insert(name);
        if (content.isTensor() && content.toTensor().sizes() == shard.local_sizes) {
          auto& by_rank = divided[field];
          by_rank.resize(all.size());
          by_rank[rank].emplace(name, on_host(content));
        } else {
          common[name][field] = content;
        }
      }
    }
  }
  std::map<std::string, TensorMap> whole; // by field
  for (const auto& [field, by_rank] : divided) {
    TensorMap full = assemble(unit, by_rank);
    const at::TensorOptions like = full.begin()->second.options();
    for (const auto& [name, held] : unit.held) {
      if (full.count(name) == 0) { // that parameter has had no gradient yet
        full[name] = at::zeros(held.begin()->second.shard.full_sizes, like);
      }
    }
    whole[field] = to_original(unit, full);
  }
  int turn = 0;
  for (const Whole& entry : unit.whole) {
    const auto from = origins(unit).find(entry.name);
    if (from == origins(unit).end() || from->second.empty() ||
        group_of_name.count(from->second.front()) == 0) {
      continue;
    }
    const int index = group_of_name.at(from->second.front());
    const std::string* stated = nullptr;
    for (const std::string& origin : from->second) {
      if (group_of_name.count(origin) == 0 || group_of_name.at(origin) != index) {
        throw CheckpointError(
            str("the optimizer has parts of '",
                join_path(unit.path, entry.name),
                "' in different groups: ",
                from->second.front(),
                " and ",
                origin,
                " of its distributed module; put both into one group"));
      }
      stated = with_state.count(origin) != 0 ? &origin : stated;
    }
    if (turn++ % group.size() != group.rank()) {
      continue;
    }
    const std::string name = join_path(unit.path, entry.name);
    share.groups.at(index).parameters.push_back(name);
    if (stated == nullptr) {
      continue;
    }
    Fields& fields = share.parameters[name];
    const auto others = common.find(*stated);
    if (others != common.end()) {
      fields = others->second;
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

void StateLayout::take_unit_state(
    const Unit& unit,
    const OptimizerState& whole,
    OptimizerState& local) const {
  const auto groups = groups_of(whole);
  if (take_own_state(unit, whole, groups, local)) {
    return;
  }
  const auto& made_of = origins(unit);
  std::map<std::string, const Whole*> entries;
  for (const Whole& entry : unit.whole) {
    entries[entry.name] = &entry;
  }
  // Which fields are divided, and the whole tensors of each.
  std::map<std::string, TensorMap> divided;
  for (const auto& [name, entry] : entries) {
    const auto fields = whole.parameters.find(join_path(unit.path, name));
    if (fields == whole.parameters.end()) {
      continue;
    }
    for (const auto& [field, content] : fields->second) {
      if (content.isTensor() && content.toTensor().sizes() == entry->sizes) {
        divided[field][name] = content.toTensor();
      }
    }
  }
  for (auto& [field, tensors] : divided) {
    const at::TensorOptions like = tensors.begin()->second.options();
    for (const auto& [name, entry] : entries) {
      if (tensors.count(name) == 0) {
        tensors[name] = at::zeros(entry->sizes, like);
      }
    }
    tensors = to_distributed(unit, tensors);
  }
  const int tp = tp_rank();
  for (const auto& [name, origin_names] : made_of) {
    const std::string whole_name = join_path(unit.path, name);
    const auto at = groups.find(whole_name);
    const auto fields = whole.parameters.find(whole_name);
    for (const std::string& held : origin_names) {
      const std::string local_name = join_path(unit.path, held);
      if (unit.here.count(held) == 0) {
        continue;
      }
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
          mine[field] = nn::take_shard(unit.held.at(held).at(tp).shard, parts->second.at(held));
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
