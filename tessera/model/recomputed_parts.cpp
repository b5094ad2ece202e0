#include "tessera/model/recomputed_parts.h"

#include <optional>
#include <set>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/nn/module/containers.h"
#include "tessera/nn/module/recomputed_call.h"

namespace tessera::model {

namespace {

using Entry = runtime::ModuleTable::Entry;

void add_below(const torch::nn::Module& module, std::set<const torch::nn::Module*>& all) {
  if (all.insert(&module).second) {
    for (const auto& child : module.children()) {
      add_below(*child, all);
    }
  }
}

/// A module of the part that begins at `part` and that another rank owns; nullptr when there is
/// none. One that another part of the model holds as well may have its path there.
const Entry* elsewhere(const runtime::ModuleTable& table, const Entry& part) {
  std::set<const torch::nn::Module*> below;
  add_below(*part.module, below);
  for (const Entry& entry : table.entries()) {
    if (entry.owner != part.owner && below.contains(entry.module)) {
      return &entry;
    }
  }
  return nullptr;
}

/// The parts of `flagged` that are recomputed as one: itself, or a Sequential's children.
std::vector<const Entry*> parts_of(const runtime::ModuleTable& table, const Entry& flagged) {
  if (dynamic_cast<const nn::SequentialImpl*>(flagged.module) == nullptr) {
    return {&flagged};
  }
  std::vector<const Entry*> parts;
  for (const auto& child : flagged.module->children()) {
    for (const Entry& entry : table.entries()) {
      if (entry.module == child.get()) {
        parts.push_back(&entry);
      }
    }
  }
  return parts;
}

} // namespace

void check_recomputed_parts(const runtime::ModuleTable& table, bool automatic) {
  if (!nn::recomputes()) {
    return;
  }
  for (const Entry& flagged : table.entries()) {
    std::optional<nn::Recomputation> how = nn::marked_recomputation(*flagged.module);
    if (!how) {
      continue;
    }
    how->path = flagged.path;
    nn::set_recomputation(*flagged.module, *how);
    for (const Entry* part : parts_of(table, flagged)) {
      const Entry* other = elsewhere(table, *part);
      if (other == nullptr) {
        continue;
      }
      const std::string found =
          str("activation checkpointing of module '",
              part->path,
              "' needs all of it on one pipeline rank: it is on rank ",
              part->owner,
              ", its module '",
              other->path,
              "' on rank ",
              other->owner);
      if (!automatic) {
        throw PlanError(found + "; change the partition, or flag smaller modules");
      }
      log::warning(found + "; the module runs without it");
      nn::drop_recomputation(*flagged.module);
      break;
    }
  }
}

} // namespace tessera::model
