#include "tessera/state/layout.h"

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/tensor/value.h"

namespace tessera::state {

StateLayout::StateLayout(
    Context& context,
    const torch::nn::Module& root,
    const std::vector<nn::ReplacedModule>& replaced)
    : context_(context) {
  std::map<const torch::nn::Module*, const nn::ReplacedModule*> of;
  for (const auto& entry : replaced) {
    of[entry.module.get()] = &entry;
  }
  std::set<const torch::nn::Module*> seen;
  const std::function<void(const torch::nn::Module&, const std::string&)> visit =
      [&](const torch::nn::Module& module, const std::string& path) {
        if (!seen.insert(&module).second) {
          return;
        }
        if (dynamic_cast<const nn::DistributedModule*>(&module) != nullptr) {
          const auto found = of.find(&module);
          add_unit(path, module, found == of.end() ? nullptr : found->second);
          return;
        }
        for (const auto& list : {module.named_parameters(false), module.named_buffers(false)}) {
          for (const auto& item : list) {
            if (item.value().defined()) {
              plain_names_.insert(join_path(path, item.key()));
            }
          }
        }
        for (const auto& child : module.named_children()) {
          visit(*child.value(), join_path(path, child.key()));
        }
      };
  visit(root, "");
  exchange();
  for (Unit& unit : units_) {
    fill_whole(unit);
  }
}

void StateLayout::add_unit(
    const std::string& path,
    const torch::nn::Module& module,
    const nn::ReplacedModule* replaced) {
  Unit unit;
  unit.path = path;
  const int rank = tp_rank();
  for (const auto& [name, local] : nn::local_tensors(module)) {
    unit.held[name][rank] = {local.shard, local.distributed, local.scaled_batch, local.parameter};
    unit.whole.push_back({name, {}, local.tensor.scalar_type(), true});
  }
  if (replaced != nullptr) {
    unit.rule = replaced->rule;
    unit.original = replaced->original;
    unit.whole.clear();
    const auto parameters = replaced->original->named_parameters();
    for (const auto& [name, tensor] : replaced->tensors) {
      unit.whole.push_back(
          {name, tensor.sizes().vec(), tensor.scalar_type(), parameters.find(name) != nullptr});
    }
  }
  units_.push_back(std::move(unit));
}

// A unit without a registration keeps its own names; a rank may not hold all of them.
void StateLayout::fill_whole(Unit& unit) const {
  if (unit.rule != nullptr) {
    return;
  }
  const at::ScalarType dtype = unit.whole.empty() ? at::kFloat : unit.whole.front().dtype;
  std::map<std::string, at::ScalarType> own;
  for (const Whole& entry : unit.whole) {
    own[entry.name] = entry.dtype;
  }
  unit.whole.clear();
  for (const auto& [name, by_rank] : unit.held) {
    const Held& held = by_rank.begin()->second;
    const auto known = own.find(name);
    unit.whole.push_back(
        {name, held.shard.full_sizes, known == own.end() ? dtype : known->second, held.parameter});
  }
}

namespace {

/// The pp rank that owns the module at `path`: its own entry, or that of the module it is folded
/// into.
int owner_of_module(const runtime::ModuleTable& table, const std::string& path) {
  const runtime::ModuleTable::Entry* nearest = nullptr;
  for (const auto& entry : table.entries()) {
    const bool holds =
        entry.path.empty() || entry.path == path || path.starts_with(entry.path + ".");
    if (holds && (nearest == nullptr || entry.path.size() >= nearest->path.size())) {
      nearest = &entry;
    }
  }
  TESSERA_CHECK(nearest != nullptr, "no module of the partition holds ", path);
  return nearest->owner;
}

} // namespace

void StateLayout::place(const runtime::ModuleTable& table) {
  table_ = &table;
  const int tp = tp_rank();
  for (Unit& unit : units_) {
    std::set<int> owners;
    unit.here.clear();
    for (const auto& [name, by_rank] : unit.held) {
      const std::string full_name = join_path(unit.path, name);
      if (by_rank.count(tp) == 0 || !table.has_tensor(full_name)) {
        continue;
      }
      const int owner = table.owner_of_tensor(full_name);
      owners.insert(owner);
      if (owner == table.pp_rank()) {
        unit.here.insert(name);
      }
    }
    // A rank of the TP_GROUP that holds no tensor of the module takes part in its exchanges all
    // the same.
    const bool nothing = owners.empty() && !unit.held.empty();
    unit.spans_pipeline = owners.size() > 1;
    unit.mine = nothing ? owner_of_module(table, unit.path) == table.pp_rank() : !unit.here.empty();
  }
}

std::set<std::string> StateLayout::whole_names() const {
  std::set<std::string> names;
  for (const std::string& name : table_->tensor_names()) {
    if (unit_of(name) == nullptr) {
      names.insert(name);
    }
  }
  // Other names of shared tensors are names of the model too.
  for (const std::string& name : plain_names_) {
    names.insert(name);
  }
  for (const Unit& unit : units_) {
    for (const Whole& entry : unit.whole) {
      names.insert(join_path(unit.path, entry.name));
    }
  }
  return names;
}

bool StateLayout::holds_part_of(const std::string& path) const {
  for (const Unit& unit : units_) {
    if (unit.path == path) {
      return unit.mine;
    }
  }
  return false;
}

const StateLayout::Unit* StateLayout::unit_of(const std::string& local_name) const {
  for (const Unit& unit : units_) {
    if (unit.path.empty() || local_name.starts_with(unit.path + ".")) {
      return &unit;
    }
  }
  return nullptr;
}

const StateLayout::Held* StateLayout::held_here(const std::string& local_name) const {
  const Unit* unit = unit_of(local_name);
  if (unit == nullptr) {
    return nullptr;
  }
  const std::string name =
      unit->path.empty() ? local_name : local_name.substr(unit->path.size() + 1);
  const auto found = unit->held.find(name);
  if (found == unit->held.end()) {
    return nullptr;
  }
  const auto here = found->second.find(tp_rank());
  return here == found->second.end() ? nullptr : &here->second;
}

bool StateLayout::is_scaled_batch(const std::string& local_name) const {
  const Held* held = held_here(local_name);
  return held != nullptr && held->distributed && held->scaled_batch;
}

bool StateLayout::is_distributed(const std::string& local_name) const {
  const Held* held = held_here(local_name);
  return held != nullptr && held->distributed && held->shard.local_sizes != held->shard.full_sizes;
}

std::vector<at::Tensor> StateLayout::counted_once(
    const std::string& local_name,
    const at::Tensor& tensor) const {
  const int tp = tp_rank();
  const Unit* unit = unit_of(local_name);
  if (unit == nullptr) {
    return tp == 0 ? std::vector<at::Tensor>{tensor} : std::vector<at::Tensor>();
  }
  const std::string name =
      unit->path.empty() ? local_name : local_name.substr(unit->path.size() + 1);
  const auto& by_rank = unit->held.at(name);
  std::vector<at::Tensor> counted;
  for (const nn::Piece& piece : by_rank.at(tp).shard.pieces) {
    bool first = true;
    for (const auto& [rank, held] : by_rank) {
      for (const nn::Piece& other : held.shard.pieces) {
        first = first &&
                !(rank < tp && other.full_start == piece.full_start && other.sizes == piece.sizes);
      }
    }
    if (first && tensor.sizes() == piece.sizes) {
      counted.push_back(tensor);
    } else if (first) {
      at::Tensor part = tensor.is_sparse() ? tensor.to_dense() : tensor;
      for (std::size_t d = 0; d < piece.sizes.size(); ++d) {
        part = part.narrow(static_cast<std::int64_t>(d), piece.local_start[d], piece.sizes[d]);
      }
      counted.push_back(part);
    }
  }
  return counted;
}

comm::ProcessGroup& StateLayout::group_of(const Unit& unit) const {
  return context_.group(unit.spans_pipeline ? Group::kMP : Group::kTP);
}

std::vector<StateLayout::Whole> StateLayout::wanted(int part) const {
  std::vector<Whole> list;
  if (part > 0) {
    const Unit& unit = units_.at(part - 1);
    for (const Whole& entry : unit.whole) {
      if (unit.mine) {
        list.push_back(entry);
        list.back().name = join_path(unit.path, entry.name);
      }
    }
    return list;
  }
  const auto add = [&](const NamedTensors& tensors, bool parameter) {
    for (const auto& [name, tensor] : tensors) {
      if (unit_of(name) == nullptr) {
        list.push_back({name, tensor.sizes().vec(), tensor.scalar_type(), parameter});
      }
    }
  };
  add(table_->local_parameters(), true);
  add(table_->local_buffers(), false);
  return list;
}

TensorMap StateLayout::to_local(int part, const TensorMap& whole) const {
  TensorMap local;
  if (part == 0) {
    for (const Whole& entry : wanted(0)) {
      const auto found = whole.find(entry.name);
      if (found != whole.end()) {
        local.emplace(*found);
      }
    }
    return local;
  }
  const Unit& unit = units_.at(part - 1);
  const int tp = tp_rank();
  TensorMap given;
  bool is_whole = true;
  for (const Whole& entry : unit.whole) {
    const auto found = whole.find(join_path(unit.path, entry.name));
    if (found == whole.end() || found->second.sizes() != entry.sizes) {
      is_whole = is_whole && !entry.parameter;
    } else {
      given.emplace(entry.name, found->second);
    }
  }
  const TensorMap full = is_whole ? to_distributed(unit, given) : TensorMap();
  for (const std::string& name : unit.here) {
    const std::string local_name = join_path(unit.path, name);
    const nn::Shard& shard = unit.held.at(name).at(tp).shard;
    if (is_whole) {
      const auto found = full.find(name);
      if (found != full.end()) {
        local.emplace(local_name, nn::take_shard(shard, found->second));
      }
      continue;
    }
    const auto found = whole.find(local_name);
    if (found != whole.end() && found->second.sizes() == shard.local_sizes) {
      local.emplace(*found);
    }
  }
  return local;
}

TensorMap StateLayout::to_original(const Unit& unit, const TensorMap& full) const {
  return unit.rule != nullptr && unit.rule->to_original
             ? unit.rule->to_original(full, *unit.original)
             : full;
}

TensorMap StateLayout::to_distributed(const Unit& unit, const TensorMap& whole) const {
  return unit.rule != nullptr && unit.rule->to_distributed
             ? unit.rule->to_distributed(whole, *unit.original)
             : whole;
}

// Assembles full tensors from what each rank of the unit's group gave.
TensorMap StateLayout::assemble(const Unit& unit, const std::vector<TensorMap>& by_rank) const {
  const auto& ranks = group_of(unit).ranks();
  TensorMap full;
  for (std::size_t i = 0; i < by_rank.size(); ++i) {
    const int tp = context_.layout->coordinates(ranks[i]).tp;
    for (const auto& [name, tensor] : by_rank[i]) {
      const nn::Shard& shard = unit.held.at(name).at(tp).shard;
      const auto [entry, added] = full.emplace(name, at::Tensor());
      if (added) {
        entry->second = at::zeros(shard.full_sizes, tensor.options());
      }
      nn::put_shard(shard, tensor, entry->second);
    }
  }
  return full;
}

TensorMap StateLayout::whole_share(const TensorMap& local) const {
  comm::ProcessGroup& tp = context_.group(Group::kTP);
  TensorMap share;
  // The first rank's buffers are those that every step begins with; parameters are alike.
  std::set<std::string> buffers;
  for (const auto& [name, tensor] : table_->local_buffers()) {
    buffers.insert(name);
  }
  int turn = 0;
  for (const auto& [name, tensor] : local) {
    if (unit_of(name) != nullptr) {
      continue;
    }
    const int rank = buffers.contains(name) ? 0 : turn++ % tp.size();
    if (rank == tp.rank()) {
      share.emplace(name, tensor);
    }
  }
  for (const Unit& unit : units_) {
    if (!unit.mine && !unit.spans_pipeline) {
      continue;
    }
    comm::ProcessGroup& group = group_of(unit);
    TensorMap mine;
    for (const std::string& name : unit.here) {
      const auto found = local.find(join_path(unit.path, name));
      if (found != local.end()) {
        mine.emplace(name, found->second.detach().cpu());
      }
    }
    std::vector<TensorMap> by_rank;
    for (const auto& theirs : comm::all_gather_object(*context_.world, group, pack(mine))) {
      by_rank.push_back(unpack<TensorMap>(theirs));
    }
    turn = 0;
    const TensorMap whole = to_original(unit, assemble(unit, by_rank));
    for (const Whole& entry : unit.whole) {
      const auto found = whole.find(entry.name);
      if (found != whole.end() && turn++ % group.size() == group.rank()) {
        share.emplace(join_path(unit.path, entry.name), found->second.contiguous());
      }
    }
  }
  return share;
}

} // namespace tessera::state
