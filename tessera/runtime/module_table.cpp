#include "tessera/runtime/module_table.h"

#include "tessera/base/error.h"
#include "tessera/nn/module/containers.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/nn/module/marks.h"
#include "tessera/nn/module/operator_layer.h"
#include "tessera/nn/module/remote_guard.h"

namespace tessera::runtime {

ModuleTable::ModuleTable(
    std::shared_ptr<torch::nn::Module> root,
    const std::map<std::string, int>& partition,
    int pp_rank)
    : root_(std::move(root)), pp_rank_(pp_rank) {
  visit(root_, "", 0, partition);
}

void ModuleTable::visit(
    const std::shared_ptr<torch::nn::Module>& module,
    const std::string& path,
    int owner,
    const std::map<std::string, int>& partition) {
  // The root is a node, whatever holds it.
  const bool node = path.empty() || nn::is_node(*module);
  const auto known = ids_.find(module.get());
  if (known != ids_.end()) {
    // Registered under a second path: the first one decides, but its tensors
    // go by both names, and a part of two parents must suit both.
    owner = node ? entries_.at(known->second).owner : owner;
  } else if (node) {
    const auto entry = partition.find(path);
    if (entry != partition.end()) {
      owner = entry->second;
    } else if (nn::is_interceptable(*module)) {
      throw PlanError(
          str("the plan has no partition for module '", path, "' (", nn::type_name(*module), ")"));
    } // a plan that was written by hand may leave libtorch's own layers to their parents
    ids_[module.get()] = static_cast<int>(entries_.size());
    entries_.push_back({path, module.get(), owner});
  } else {
    ids_[module.get()] = -1;
  }
  const std::string prefix = path.empty() ? "" : path + ".";
  for (const auto& item : module->named_parameters(false)) {
    hold(parameters_, {prefix + item.key(), item.value(), owner, module.get()});
  }
  for (const auto& item : module->named_buffers(false)) {
    hold(buffers_, {prefix + item.key(), item.value(), owner, module.get()});
  }
  for (const auto& child : module->named_children()) {
    visit(child.value(), prefix + child.key(), owner, partition);
  }
  if (dynamic_cast<nn::SequentialImpl*>(module.get()) != nullptr) {
    if (!node) {
      throw PlanError(
          str("Sequential '",
              path,
              "' is not held by a holder of this library; make it with "
              "tessera::nn::Sequential"));
    }
    auto& owners = child_owners_[module.get()];
    owners.clear();
    for (const auto& child : module->named_children()) {
      owners.push_back(entries_.at(ids_.at(child.value().get())).owner);
    }
  }
}

void ModuleTable::hold(std::vector<Held>& list, Held held) {
  if (!held.tensor.defined()) {
    return;
  }
  const auto [known, first] = first_held_.emplace(held.tensor.unsafeGetTensorImpl(), held);
  const Held& before = known->second;
  if (first) {
    list.push_back(held);
  } else if (before.owner != held.owner) {
    throw PlanError(
        str("parameter '",
            before.name,
            "' is shared with '",
            held.name,
            "', so both must be on one partition; the plan puts them on ",
            before.owner,
            " and ",
            held.owner));
  }
  tensor_owner_[held.name] = held.owner;
  tensors_[held.name] = held.tensor;
}

void ModuleTable::add(const std::string& path, torch::nn::Module& module, int owner) {
  ids_[&module] = static_cast<int>(entries_.size());
  entries_.push_back({path, &module, owner});
}

int ModuleTable::id_of(const torch::nn::Module& module) const {
  const auto entry = ids_.find(&module);
  return entry == ids_.end() ? -1 : entry->second;
}

std::string ModuleTable::name_of(int id) const {
  const std::string& path = entries_.at(id).path;
  return path.empty() ? "the model" : path;
}

int ModuleTable::owner_of_child(const torch::nn::Module& sequential, int child) const {
  return child_owners_.at(&sequential).at(child);
}

namespace {

template <typename List>
std::vector<std::pair<std::string, torch::Tensor>> of_rank(const List& list, int pp_rank) {
  std::vector<std::pair<std::string, torch::Tensor>> result;
  for (const auto& held : list) {
    if (held.owner == pp_rank) {
      result.emplace_back(held.name, held.tensor);
    }
  }
  return result;
}

} // namespace

std::vector<std::pair<std::string, torch::Tensor>> ModuleTable::local_parameters() const {
  return of_rank(parameters_, pp_rank_);
}

std::vector<std::pair<std::string, torch::Tensor>> ModuleTable::local_buffers() const {
  return of_rank(buffers_, pp_rank_);
}

std::vector<std::string> ModuleTable::tensor_names() const {
  std::vector<std::string> names;
  for (const auto* list : {&parameters_, &buffers_}) {
    for (const Held& held : *list) {
      names.push_back(held.name);
    }
  }
  return names;
}

int ModuleTable::owner_of_tensor(const std::string& name) const {
  const auto entry = tensor_owner_.find(name);
  TESSERA_CHECK(entry != tensor_owner_.end(), "no parameter '", name, "'");
  return entry->second;
}

const torch::Tensor& ModuleTable::tensor(const std::string& name) const {
  const auto entry = tensors_.find(name);
  TESSERA_CHECK(entry != tensors_.end(), "no parameter '", name, "'");
  return entry->second;
}

void ModuleTable::drop_remote_tensors(const std::vector<int>& pp_ranks) {
  for (const auto* list : {&parameters_, &buffers_}) {
    for (const Held& held : *list) {
      if (held.owner != pp_rank_) {
        nn::RemoteTensor remote;
        remote.name = held.name;
        remote.rank = pp_ranks.at(held.owner);
        remote.here = pp_ranks.at(pp_rank_);
        remote.module = held.module;
        remote.buffer = list == &buffers_;
        nn::make_remote(held.tensor, std::move(remote));
      }
    }
  }
}

void ModuleTable::show_remote_gradients() const {
  for (const Held& held : parameters_) {
    if (held.owner != pp_rank_) {
      nn::show_remote_gradient(held.tensor);
    }
  }
}

} // namespace tessera::runtime
