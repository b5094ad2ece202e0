// What a script asks ModelCore of the tensors and modules that this rank owns.
#include <set>

#include "tessera/model/model_core.h"

namespace tessera::model {

namespace {

std::optional<std::string> name_in(const NamedTensors& tensors, const at::Tensor& wanted) {
  for (const auto& [name, tensor] : tensors) {
    if (tensor.is_same(wanted)) {
      return name;
    }
  }
  return std::nullopt;
}

} // namespace

// A module that is no entry of the table is part of its parent, so it runs where that does.
NamedModules ModelCore::local_modules() const {
  const runtime::ModuleTable& table = this->table();
  NamedModules local;
  std::set<const torch::nn::Module*> seen;
  const std::function<void(const std::shared_ptr<torch::nn::Module>&, const std::string&, int)>
      visit = [&](const auto& module, const std::string& path, int owner) {
        if (!seen.insert(module.get()).second) {
          return;
        }
        if (const int id = table.id_of(*module); id >= 0) {
          owner = table.entries()[static_cast<std::size_t>(id)].owner;
        }
        if (owner == table.pp_rank()) {
          local.emplace_back(path, module);
        }
        for (const auto& child : module->named_children()) {
          visit(child.value(), path.empty() ? child.key() : path + "." + child.key(), owner);
        }
      };
  visit(root_, "", 0);
  return local;
}

std::optional<std::string> ModelCore::name_of_parameter(const at::Tensor& parameter) const {
  return name_in(local_parameters(), parameter);
}

std::optional<std::string> ModelCore::name_of_buffer(const at::Tensor& buffer) const {
  return name_in(local_buffers(), buffer);
}

NamedTensors ModelCore::reduced_parameters(bool scaled_batch) const {
  NamedTensors list = local_parameters();
  std::erase_if(list, [&](const auto& item) {
    const bool divided =
        shards_ != nullptr && !shards_->updated_part(item.second).is_same(item.second);
    return divided || layout_->is_scaled_batch(item.first) != scaled_batch;
  });
  return list;
}

} // namespace tessera::model
