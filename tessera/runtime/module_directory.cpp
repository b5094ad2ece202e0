#include "tessera/runtime/module_directory.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/nn/module/interceptor.h"

namespace tessera::runtime {

void ModuleDirectory::add(const ModuleTable& table, std::string label) {
  for (const Entry& entry : table.entries()) {
    const bool fresh = ids_.emplace(entry.module, static_cast<int>(entries_.size())).second;
    TESSERA_CHECK(fresh, "module '", entry.path, "' belongs to two models");
    entries_.push_back(entry);
  }
  models_.push_back({&table, std::move(label), static_cast<int>(entries_.size())});
  ++live_;
  ++revision_;
}

void ModuleDirectory::remove(const ModuleTable& table) {
  const auto model = std::find_if(
      models_.begin(), models_.end(), [&](const Model& known) { return known.table == &table; });
  if (model == models_.end()) {
    return;
  }
  model->table = nullptr;
  --live_;
  ++revision_;
  const int first = model == models_.begin() ? 0 : (model - 1)->end;
  for (int id = first; id < model->end; ++id) {
    ids_.erase(entries_[id].module);
    entries_[id].module = nullptr;
  }
}

void ModuleDirectory::refuse_waiting(const torch::nn::Module& root, const std::string& label) {
  waiting_.emplace(&root, label);
  for (const auto& module : root.modules(/*include_self=*/false)) {
    waiting_.emplace(module.get(), label);
  }
}

void ModuleDirectory::refuse(const torch::nn::Module& module) const {
  const auto found = waiting_.find(&module);
  if (found == waiting_.end()) {
    return;
  }
  throw UserError(
      str("model '",
          found->second,
          "' was called (module ",
          nn::type_name(module),
          ") in a step whose first microbatch on rank 0 does not call it, so it is not "
          "partitioned; call the step again, which then partitions it without a trace, or call "
          "the model in every microbatch, or set skip_tracing: true"));
}

int ModuleDirectory::id_of(const torch::nn::Module& module) const {
  const auto entry = ids_.find(&module);
  return entry == ids_.end() ? -1 : entry->second;
}

const ModuleDirectory::Model& ModuleDirectory::model_of(int id) const {
  const auto model =
      std::find_if(models_.begin(), models_.end(), [&](const Model& m) { return id < m.end; });
  TESSERA_CHECK(id >= 0 && model != models_.end(), "no module has id ", id);
  return *model;
}

std::string ModuleDirectory::name_of(int id) const {
  const Model& model = model_of(id);
  const std::string& path = entries_[id].path;
  if (live_ <= 1) {
    return path.empty() ? "the model" : path;
  }
  return path.empty() ? "the model " + model.label : model.label + ": " + path;
}

const ModuleTable& ModuleDirectory::table_of(int id) const {
  return *model_of(id).table;
}

ModuleDirectory::Named ModuleDirectory::gather(Named (ModuleTable::*list)() const) const {
  Named all;
  for (const Model& model : models_) {
    if (model.table != nullptr) {
      const Named own = (model.table->*list)();
      all.insert(all.end(), own.begin(), own.end());
    }
  }
  return all;
}

bool ModuleDirectory::has_buffers() const {
  return std::any_of(models_.begin(), models_.end(), [](const Model& model) {
    return model.table != nullptr && model.table->has_buffers();
  });
}

int ModuleDirectory::owner_of_child(const torch::nn::Module& sequential, int child) const {
  const int id = id_of(sequential);
  TESSERA_CHECK(id >= 0, "a Sequential of no model");
  return model_of(id).table->owner_of_child(sequential, child);
}

} // namespace tessera::runtime
