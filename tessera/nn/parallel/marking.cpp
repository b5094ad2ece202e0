#include "tessera/nn/parallel/marking.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/nn/module/marks.h"
#include "tessera/nn/module/script_class.h"

namespace tessera::nn {

TensorParallelismScope::TensorParallelismScope(bool enabled, OptionValues options)
    : previous_enabled_(mark_defaults().tensor_parallel),
      previous_options_(std::exchange(mark_defaults().options, std::move(options))) {
  mark_defaults().tensor_parallel = enabled;
}

TensorParallelismScope::~TensorParallelismScope() {
  mark_defaults().tensor_parallel = previous_enabled_;
  mark_defaults().options = std::move(previous_options_);
}

void set_tensor_parallelism(torch::nn::Module& module, bool enabled, const OptionValues& options) {
  int marked = 0;
  // `modules` lists the module itself too, but needs it in a shared_ptr.
  const auto set = [&](const torch::nn::Module& one) {
    with_mark(one, [&](Mark* mark) {
      if (mark != nullptr) {
        mark->tensor_parallel = enabled;
        mark->options = options;
        ++marked;
      }
    });
  };
  set(module);
  for (const auto& inner : module.modules(/*include_self=*/false)) {
    set(*inner);
  }
  if (marked == 0) {
    throw ConfigError(
        str("set_tensor_parallelism: ",
            type_name(module),
            " and the modules inside it are not held by holders of this "
            "library, so their calls cannot be redirected; declare them with "
            "TESSERA_MODULE or tessera::nn"));
  }
}

bool is_marked_tensor_parallel(const torch::nn::Module& module) {
  bool marked = false;
  with_mark(module, [&](Mark* mark) { marked = mark != nullptr && mark->tensor_parallel; });
  return marked;
}

OptionValues tensor_parallel_options(const torch::nn::Module& module) {
  OptionValues options;
  with_mark(module, [&](Mark* mark) {
    if (mark != nullptr) {
      options = mark->options;
    }
  });
  return options;
}

} // namespace tessera::nn
