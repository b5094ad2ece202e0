#include "tessera/optim/state_sharing.h"

#include <algorithm>
#include <exception>
#include <map>
#include <set>
#include <string>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/context/agreement.h"
#include "tessera/model/model_core.h"
#include "tessera/optim/failed_update.h"
#include "tessera/state/optimizer_parts.h"
#include "tessera/tensor/value.h"

namespace tessera::optim {

using data_parallel::OwnedTensor;
using data_parallel::StateOwners;
using model::ModelCore;

namespace {

using Groups = std::vector<const StateOwners*>;

Groups groups_of(const ModelCore& model) {
  Groups groups;
  if (model.partitioned() && model.gradients() != nullptr) {
    for (const auto& owners : model.gradients()->state_owners()) {
      groups.push_back(owners.get());
    }
  }
  return groups;
}

Groups groups_of(const StateSharing::Models& models) {
  Groups groups;
  for (const ModelCore* model : models) {
    for (const StateOwners* owners : groups_of(*model)) {
      groups.push_back(owners);
    }
  }
  return groups;
}

/// The parameters of `shared` that may have changed on their owners. One rank's error is an error
/// of all, since its values cannot be had.
std::vector<OwnedTensor> changed(
    const Context& context,
    const StateOwners& group,
    const data_parallel::ParameterSet& shared,
    const std::exception_ptr& error) {
  const auto& parameters = group.parameters();
  at::Tensor flags = at::zeros({static_cast<std::int64_t>(parameters.size()) + 1}, at::kByte);
  auto* may_differ = flags.data_ptr<std::uint8_t>();
  auto& failed = may_differ[parameters.size()];
  failed = error != nullptr ? 1 : 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[i].second;
    const bool here = group.owners()[i] == group.group().rank();
    may_differ[i] = here && shared.contains(tensor.unsafeGetTensorImpl()) &&
                            (tensor.requires_grad() || tensor.grad().defined())
                        ? 1
                        : 0;
  }
  group.control().all_reduce(flags, comm::ReduceOp::kMax);
  if (failed != 0) {
    const auto problem =
        first_problem(*context.world, group.control(), failure_text(context, error));
    if (error != nullptr) {
      std::rethrow_exception(error);
    }
    throw UserError(
        str("the optimizer's update failed on a rank that keeps state of this rank's parameters: ",
            problem.value_or("")));
  }
  std::vector<OwnedTensor> list;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (may_differ[i] != 0) {
      list.push_back({parameters[i].second, group.owners()[i]});
    }
  }
  return list;
}

/// The part of a state that belongs to some parameters.
state::OptimizerState part_of(
    const state::OptimizerState& state,
    const std::function<bool(const std::string&)>& takes) {
  state::OptimizerState part;
  part.kind = state.kind;
  for (const auto& group : state.groups) {
    auto& taken = part.groups.emplace_back();
    taken.options = group.options;
    std::copy_if(
        group.parameters.begin(),
        group.parameters.end(),
        std::back_inserter(taken.parameters),
        takes);
  }
  for (const auto& [name, fields] : state.parameters) {
    if (takes(name)) {
      part.parameters.emplace(name, fields);
    }
  }
  return part;
}

std::set<std::string> owned_here(const StateOwners& group) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < group.parameters().size(); ++i) {
    if (group.owners()[i] == group.group().rank()) {
      names.insert(group.parameters()[i].first);
    }
  }
  return names;
}

using Packed = std::tuple<TensorMap, c10::IValue>;

/// Takes over what one rank of a group owns.
void take_over(const c10::IValue& packed, StateSharing::Content& content) {
  auto [values, state] = unpack<Packed>(packed);
  for (auto& [name, tensor] : content.parameters) {
    const auto found = values.find(name);
    if (found != values.end()) {
      tensor = found->second;
    }
  }
  state::merge_into(content.state, state::unpack_state(state));
}

/// Lists the parameters of each group in the model's order, which ranks of a TP_GROUP share.
void sort_names(const NamedTensors& parameters, state::OptimizerState& state) {
  std::map<std::string, std::size_t> position;
  for (const auto& [name, tensor] : parameters) {
    position.emplace(name, position.size());
  }
  for (auto& group : state.groups) {
    std::sort(group.parameters.begin(), group.parameters.end(), [&](const auto& a, const auto& b) {
      return position.at(a) < position.at(b);
    });
  }
}

} // namespace

StateSharing::StateSharing(const std::vector<at::Tensor>& parameters) {
  auto set = std::make_shared<data_parallel::ParameterSet>();
  for (const at::Tensor& parameter : parameters) {
    set->insert(parameter.unsafeGetTensorImpl());
  }
  parameters_ = std::move(set);
}

void StateSharing::join(const Models& models) const {
  if (parameters_ == nullptr) {
    return;
  }
  for (ModelCore* model : models) {
    model->share_optimizer_state(parameters_);
  }
}

bool StateSharing::in_use(const Models& models) const {
  return parameters_ != nullptr && !groups_of(models).empty();
}

bool StateSharing::is_elsewhere(const Models& models, const at::Tensor& parameter) const {
  if (parameters_ == nullptr) {
    return false;
  }
  const Groups groups = groups_of(models);
  return std::any_of(groups.begin(), groups.end(), [&](const StateOwners* group) {
    return group->is_elsewhere(parameter);
  });
}

std::optional<bool> StateSharing::counts_whole(
    const Context& context,
    const Models& models,
    const at::Tensor& parameter) const {
  if (!in_use(models)) {
    return std::nullopt;
  }
  for (const ModelCore* model : models) {
    const Groups groups = groups_of(*model);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const int owner = groups[i]->owner_of(parameter);
      if (owner >= 0) { // the DP_GROUP has one gradient of it, the RDP_GROUP one of each part
        return i == 0 ? std::optional<bool>(owner == groups[i]->group().rank()) : std::nullopt;
      }
    }
  }
  // Every rank has this one; replicas count it once.
  return context.coordinates().rdp == 0 ? std::nullopt : std::optional<bool>(false);
}

at::Tensor StateSharing::update(
    const Context& context,
    const Models& models,
    const std::function<at::Tensor()>& update) const {
  if (parameters_ == nullptr) {
    return update();
  }
  at::Tensor loss;
  std::exception_ptr error;
  try {
    loss = update();
  } catch (...) {
    error = std::current_exception();
  }
  // Models may have been partitioned meanwhile.
  for (const StateOwners* group : groups_of(models)) {
    const auto list = changed(context, *group, *parameters_, error);
    const timeline::Span span(*context.recorder, "updated parameters", "comm");
    data_parallel::send_values(group->group(), list);
  }
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
  return loss;
}

void StateSharing::gather(
    const Context& context,
    const ModelCore& of,
    bool first_only,
    Content& own) const {
  const Groups groups = groups_of(of);
  if (parameters_ == nullptr || groups.empty()) {
    return;
  }
  const state::OptimizerState mine = own.state;
  // What every rank keeps is whole already.
  own.state = part_of(mine, [&](const std::string& name) {
    return std::none_of(groups.begin(), groups.end(), [&](const StateOwners* group) {
      return owned_here(*group).contains(name);
    });
  });
  for (const StateOwners* group : groups) {
    const std::set<std::string> names = owned_here(*group);
    TensorMap values;
    for (const auto& [name, tensor] : own.parameters) {
      if (names.contains(name)) {
        values.emplace(name, tensor.detach());
      }
    }
    const auto part = part_of(mine, [&](const std::string& name) { return names.contains(name); });
    const c10::IValue packed = pack(Packed(std::move(values), state::pack_state(part)));
    // Of several ranks with rdp_rank 0 each needs what the whole DP_GROUP holds alike.
    const bool one_reader = group->group().size() == context.group(Group::kRDP).size();
    const auto parts = first_only && one_reader
                           ? comm::gather_object(*context.world, group->group(), packed, 0)
                           : comm::all_gather_object(*context.world, group->group(), packed);
    for (const c10::IValue& theirs : parts) {
      take_over(theirs, own);
    }
  }
  sort_names(own.parameters, own.state);
}

void StateSharing::keep_own(const Context& context, const ModelCore& of, Content& own) const {
  const bool first = context.coordinates().rdp == 0;
  const Groups groups = groups_of(of);
  std::set<std::string> names;
  for (const auto& [name, tensor] : of.local_parameters()) {
    int owner = -1;
    const comm::ProcessGroup* within = nullptr;
    for (const StateOwners* group : groups) {
      const int found = group->owner_of(tensor);
      if (found >= 0) {
        owner = found;
        within = &group->group();
      }
    }
    if (within == nullptr ? first : owner == within->rank()) {
      names.insert(name);
    }
  }
  std::erase_if(own.parameters, [&](const auto& entry) { return !names.contains(entry.first); });
  own.state = part_of(own.state, [&](const std::string& name) { return names.contains(name); });
}

} // namespace tessera::optim
