#include "tessera/model/recomputed_parts.h"

#include <optional>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/nn/module/recomputed_call.h"
#include "tessera/nn/module/sequential.h"

namespace tessera::model {

namespace {

using Entry = runtime::ModuleTable::Entry;

bool is_below(const std::string& path, const std::string& parent) {
  return parent.empty() || path == parent || path.starts_with(parent + ".");
}

/// A module of the part that begins at `part` and that another rank owns; nullptr when there is
/// none.
const Entry* elsewhere(const runtime::ModuleTable& table, const Entry& part) {
  for (const Entry& entry : table.entries()) {
    if (is_below(entry.path, part.path) && entry.owner != part.owner) {
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
