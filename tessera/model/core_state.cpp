// Parameters and buffers of ModelCore as a whole: broadcasts and state dictionaries.
#include <map>
#include <set>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/context/agreement.h"
#include "tessera/deferred_init/delayed_init.h"
#include "tessera/model/model_core.h"
#include "tessera/tensor/value.h"

namespace tessera::model {

namespace {

// Several tensors of one dtype in one message; bool travels as bytes.
void broadcast_together(
    comm::ProcessGroup& group,
    const std::vector<at::Tensor>& tensors,
    int root) {
  const at::NoGradGuard no_grad;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
  for (const at::Tensor& tensor : tensors) {
    by_type[tensor.scalar_type()].push_back(tensor);
  }
  for (auto& [type, list] : by_type) {
    std::vector<at::Tensor> rows;
    for (const at::Tensor& tensor : list) {
      rows.push_back(tensor.detach().reshape({-1}));
    }
    at::Tensor flat = at::cat(rows);
    group.broadcast(type == at::kBool ? flat.view(at::kByte) : flat, root);
    std::int64_t at = 0;
    for (at::Tensor& tensor : list) {
      tensor.detach().copy_(flat.narrow(0, at, tensor.numel()).view(tensor.sizes()));
      at += tensor.numel();
    }
  }
}

} // namespace

// What every rank of the DP_GROUP holds comes from one rank of it, what is distributed from one
// that holds the same shard.
void ModelCore::broadcast_from(const NamedTensors& tensors, int first_dp, int first_rdp) const {
  std::vector<at::Tensor> equal;
  std::vector<at::Tensor> shards;
  for (const auto& [name, tensor] : tensors) {
    (layout_->in_distributed_module(name) ? shards : equal).push_back(tensor);
  }
  for (const auto& [kind, list, root] :
       {std::make_tuple(Group::kDP, &equal, first_dp),
        std::make_tuple(Group::kRDP, &shards, first_rdp)}) {
    comm::ProcessGroup& group = context().group(kind);
    if (group.size() > 1 && !list->empty()) {
      broadcast_together(group, *list, root);
    }
  }
}

std::vector<at::Tensor> ModelCore::all_parameters() const {
  // libtorch lists a shared parameter once for each module that holds it.
  std::vector<at::Tensor> unique;
  std::set<const void*> seen;
  for (const at::Tensor& parameter : root_->parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) {
      unique.push_back(parameter);
    }
  }
  return unique;
}

NamedTensors ModelCore::all_tensors() const {
  NamedTensors all;
  for (const auto& item : root_->named_parameters()) {
    all.emplace_back(item.key(), item.value());
  }
  for (const auto& item : root_->named_buffers()) {
    all.emplace_back(item.key(), item.value());
  }
  std::erase_if(all, [](const auto& item) { return !item.second.defined(); });
  return all;
}

bool ModelCore::has_delayed() const {
  return tracer::has_delayed(*root_);
}

TensorMap ModelCore::local_state_dict() const {
  TensorMap state;
  for (const auto& list : {local_parameters(), local_buffers()}) {
    for (const auto& [name, tensor] : list) {
      state.emplace(name, tensor.detach());
    }
  }
  return state;
}

TensorMap ModelCore::state_dict(bool only_first) const {
  const Context& context = this->context();
  comm::ProcessGroup& group = context.group(Group::kMP);
  // Copies: what is returned must not change with the next step.
  TensorMap local;
  for (const auto& [name, tensor] : state_layout().whole_share(local_state_dict())) {
    local.emplace(name, tensor.cpu().clone());
  }
  if (group.size() == 1) {
    return local;
  }
  TensorMap whole;
  const auto parts = only_first ? comm::gather_object(*context.world, group, pack(local), 0)
                                : comm::all_gather_object(*context.world, group, pack(local));
  for (const auto& part : parts) {
    whole.merge(unpack<TensorMap>(part));
  }
  return whole;
}

void ModelCore::agree_on_values() const {
  if (partitioned() || has_delayed()) {
    return;
  }
  NamedTensors tensors;
  std::vector<at::Tensor> list;
  std::set<const void*> seen;
  for (const auto& [name, tensor] : all_tensors()) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) {
      tensors.emplace_back(name, tensor);
      list.push_back(tensor);
    }
  }
  comm::ProcessGroup& group = context().group(Group::kPP);
  if (group.size() > 1) {
    broadcast_together(group, list, 0);
  }
  broadcast_from(tensors, 0, 0);
}

void ModelCore::load_state_dict(TensorMap state, bool strict, bool part) {
  const bool now = partitioned() || !part;
  if (!now || !with_values([&] { apply_state(state, strict); })) {
    deferred_state_.emplace(std::move(state), strict);
  }
}

// Collective over the world: one rank's problem is every rank's error, and
// nothing is loaded when anything does not fit.
void ModelCore::apply_state(const TensorMap& state, bool strict) {
  const at::NoGradGuard no_grad;
  std::set<std::string> problems;
  TensorMap own;
  for (const auto& list : {local_parameters(), local_buffers()}) {
    own.insert(list.begin(), list.end());
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> copies; // to, from
  for (int part = 0; part < layout_->parts(); ++part) {
    TensorMap given = layout_->to_local(part, state);
    for (auto& [name, tensor] : given) {
      at::Tensor& to = own.at(name);
      if (to.sizes() == tensor.sizes()) {
        copies.emplace_back(to, tensor);
      }
    }
    for (const auto& entry : layout_->wanted(part)) {
      const auto found = state.find(entry.name);
      if (found == state.end()) {
        // A rank's own local state has other names, or a distributed module
        // has a buffer that its original lacks.
        if (strict && (part == 0 || given.empty())) {
          problems.insert(tessera::str("'", entry.name, "' is missing"));
        }
      } else if (found->second.sizes() != entry.sizes && (part == 0 || given.empty())) {
        problems.insert(tessera::str(
            "'",
            entry.name,
            "' has shape ",
            found->second.sizes(),
            ", the model's is ",
            at::IntArrayRef(entry.sizes)));
      }
    }
  }
  if (strict) {
    const std::set<std::string> known = layout_->whole_names();
    for (const auto& [name, tensor] : state) {
      // The table knows the further names of what is registered twice.
      if (!known.contains(name) && !own.contains(name) && !table_->has_tensor(name)) {
        problems.insert(tessera::str("'", name, "' is not in the model"));
      }
    }
  }
  const Context& context = this->context();
  problems = all_problems(*context.world, context.group(Group::kWorld), std::move(problems));
  if (!problems.empty()) {
    throw CheckpointError(listed("load_state_dict: the state does not fit:", problems));
  }
  if (shards_ != nullptr) {
    shards_->before_writing();
  }
  for (auto& [to, from] : copies) {
    if (shards_ == nullptr || !shards_->assign(to, from)) {
      to.detach().copy_(from);
    }
  }
  if (shards_ != nullptr) {
    shards_->after_writing();
  }
}

} // namespace tessera::model
