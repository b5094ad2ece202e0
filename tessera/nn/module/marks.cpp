#include "tessera/nn/module/marks.h"

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/nn/module/operator_layer.h"
#include "tessera/nn/module/script_class.h"

namespace tessera::nn {

namespace {

// How many replacements this process has ever made. While there are none, calls need not look for
// one.
std::atomic<int> g_replacements{0};

struct MarkTable {
  std::mutex mutex;
  std::unordered_map<const torch::nn::Module*, Mark> entries;
  std::size_t sweep_at = 1024;
};

MarkTable& marks() {
  static auto* table = new MarkTable;
  return *table;
}

// A mark counts only while its module lives: addresses are used again.
Mark* live_mark(MarkTable& table, const torch::nn::Module& module) {
  const auto entry = table.entries.find(&module);
  if (entry == table.entries.end() || entry->second.module.expired()) {
    return nullptr;
  }
  return &entry->second;
}

} // namespace

void mark_interceptable(const std::shared_ptr<torch::nn::Module>& module) {
  MarkTable& table = marks();
  const std::lock_guard lock(table.mutex);
  if (live_mark(table, *module) != nullptr) {
    return;
  }
  if (table.entries.size() >= table.sweep_at) {
    std::erase_if(table.entries, [](const auto& entry) { return entry.second.module.expired(); });
    table.sweep_at = 2 * table.entries.size() + 1024;
  }
  const MarkDefaults& defaults = mark_defaults();
  Mark mark;
  mark.module = module;
  mark.partition = defaults.partition;
  mark.tensor_parallel = defaults.tensor_parallel;
  mark.options = defaults.options;
  table.entries[module.get()] = std::move(mark);
}

MarkDefaults& mark_defaults() {
  static thread_local MarkDefaults defaults;
  return defaults;
}

void with_mark(const torch::nn::Module& module, const std::function<void(Mark*)>& work) {
  MarkTable& table = marks();
  const std::lock_guard lock(table.mutex);
  work(live_mark(table, module));
}

bool is_interceptable(const torch::nn::Module& module) {
  MarkTable& table = marks();
  const std::lock_guard lock(table.mutex);
  const Mark* mark = live_mark(table, module);
  return mark != nullptr && !mark->folded;
}

bool has_holder(const torch::nn::Module& module) {
  MarkTable& table = marks();
  const std::lock_guard lock(table.mutex);
  return live_mark(table, module) != nullptr;
}

bool is_node(const torch::nn::Module& module) {
  MarkTable& table = marks();
  {
    const std::lock_guard lock(table.mutex);
    if (const Mark* mark = live_mark(table, module)) {
      return !mark->folded;
    }
  }
  return is_operator_layer(module);
}

void fold_into_parent(const std::shared_ptr<torch::nn::Module>& module) {
  mark_interceptable(module);
  with_mark(*module, [](Mark* mark) { mark->folded = true; });
}

int manual_partition(const torch::nn::Module& module) {
  MarkTable& table = marks();
  const std::lock_guard lock(table.mutex);
  const Mark* mark = live_mark(table, module);
  return mark == nullptr ? -1 : mark->partition;
}

void set_manual_partition(const torch::nn::Module& module, int partition) {
  MarkTable& table = marks();
  const std::lock_guard lock(table.mutex);
  Mark* mark = live_mark(table, module);
  if (mark != nullptr && mark->replaced) {
    // The script passes the module that it made; the mark in use is that of its replacement.
    if (const auto replacement = mark->replacement.lock()) {
      mark = live_mark(table, *replacement);
    }
  }
  if (mark == nullptr) {
    throw ConfigError(
        str("set_partition: ",
            type_name(module),
            " is not held by a tessera module holder, so it is part of its "
            "parent; declare it with TESSERA_MODULE or tessera::nn"));
  }
  mark->partition = partition;
}

void set_replacement(
    const std::shared_ptr<torch::nn::Module>& original,
    const std::shared_ptr<torch::nn::Module>& replacement,
    CallAdapter adapter) {
  mark_interceptable(original);
  mark_interceptable(replacement);
  int partition = -1;
  std::optional<Recomputation> recomputation;
  with_mark(*original, [&](Mark* mark) {
    mark->replaced = true;
    mark->replacement = replacement;
    partition = mark->partition;
    recomputation = mark->recomputation;
  });
  with_mark(*replacement, [&](Mark* mark) {
    mark->partition = partition;
    mark->recomputation = std::move(recomputation);
    mark->adapter = std::move(adapter);
  });
  ++g_replacements;
}

void end_replacement(const torch::nn::Module& original) {
  with_mark(original, [](Mark* mark) {
    if (mark != nullptr) {
      mark->replaced = false;
      mark->replacement.reset();
    }
  });
}

torch::nn::Module& replacement_of(torch::nn::Module& module) {
  if (g_replacements == 0) {
    return module;
  }
  MarkTable& table = marks();
  const std::lock_guard lock(table.mutex);
  const Mark* mark = live_mark(table, module);
  if (mark == nullptr || !mark->replaced) {
    return module;
  }
  const auto replacement = mark->replacement.lock();
  if (replacement == nullptr) {
    throw UserError(
        str("a ",
            type_name(module),
            " was called whose DistributedModel is gone; its parameters went "
            "with it"));
  }
  return *replacement; // its parent holds it
}

const CallAdapter* adapter_of(const torch::nn::Module& module) {
  if (g_replacements == 0) {
    return nullptr;
  }
  MarkTable& table = marks();
  const std::lock_guard lock(table.mutex);
  const Mark* mark = live_mark(table, module);
  return mark == nullptr || !mark->adapter ? nullptr : &mark->adapter;
}

} // namespace tessera::nn
