#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include "tessera/nn/module/interceptor.h"

// What this folder remembers of a module from outside: libtorch's modules have
// no place for it. Private to this folder's sources.
namespace tessera::nn {

struct Mark {
  std::weak_ptr<torch::nn::Module> module;
  int partition = -1;
  /// Part of its parent whatever its holder: see keep_parts_together.
  bool folded = false;
  /// As the innermost tensor_parallelism scope or set_tensor_parallelism said.
  bool tensor_parallel = false;
  std::map<std::string, c10::IValue> options;
  /// Of a module that was replaced: what runs in its place.
  bool replaced = false;
  std::weak_ptr<torch::nn::Module> stand_in;
  /// Of a module that stands in for another: runs it on the other's arguments.
  CallAdapter adapter;
};

/// Calls `work` with the module's mark, or nullptr when it has none.
void with_mark(const torch::nn::Module& module, const std::function<void(Mark*)>& work);

/// What new marks of this thread begin with.
struct MarkDefaults {
  int partition = -1;
  bool tensor_parallel = false;
  std::map<std::string, c10::IValue> options;
};
MarkDefaults& mark_defaults();

} // namespace tessera::nn
