#include <mutex>
#include <unordered_map>

#include "tessera/nn/module/marks.h"

namespace tessera::nn {

namespace {

struct ObjectSize {
  std::weak_ptr<torch::nn::Module> module; // addresses are used again
  std::size_t bytes = 0;
};

struct SizeTable {
  std::mutex mutex;
  std::unordered_map<const torch::nn::Module*, ObjectSize> entries;
  std::size_t sweep_at = 1024;
};

// Never destroyed: modules may outlive static objects.
SizeTable& sizes() {
  static auto* table = new SizeTable;
  return *table;
}

} // namespace

void remember_object_size(const std::shared_ptr<torch::nn::Module>& module, std::size_t bytes) {
  SizeTable& table = sizes();
  const std::lock_guard lock(table.mutex);
  if (table.entries.size() >= table.sweep_at) {
    std::erase_if(table.entries, [](const auto& entry) { return entry.second.module.expired(); });
    table.sweep_at = 2 * table.entries.size() + 1024;
  }
  ObjectSize& entry = table.entries[module.get()];
  if (entry.module.expired()) {
    entry = {module, bytes};
  }
}

std::size_t object_size(const torch::nn::Module& module) {
  SizeTable& table = sizes();
  const std::lock_guard lock(table.mutex);
  const auto entry = table.entries.find(&module);
  return entry == table.entries.end() || entry->second.module.expired() ? 0 : entry->second.bytes;
}

} // namespace tessera::nn
