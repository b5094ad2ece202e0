#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include "tessera/nn/module/interceptor.h"
#include "tessera/nn/module/marks.h"

// How calls of modules become regions of recompute/recomputation.h.
namespace tessera::nn {

/// Marks the module. Throws: ConfigError when its calls do not pass the library.
void set_recomputation(const torch::nn::Module& module, const Recomputation& how);
/// Removes the mark.
void drop_recomputation(const torch::nn::Module& module);
/// Returns the options of the mark; those of a CheckpointedCall do not count.
std::optional<Recomputation> marked_recomputation(const torch::nn::Module& module);

/// Returns whether any module or call of this process was ever to be recomputed: false is the fast
/// path of a call.
bool recomputes();
/// Makes `recomputes` true for the rest of the process.
void expect_recomputation();

/// While the object lives, this thread's calls of one module are recomputed with its options;
/// without options it does nothing.
class CheckpointedCall {
 public:
  CheckpointedCall(const torch::nn::Module& module, std::optional<Recomputation> how);
  ~CheckpointedCall();
  CheckpointedCall(const CheckpointedCall&) = delete;
  CheckpointedCall& operator=(const CheckpointedCall&) = delete;

  /// Returns the options of the innermost one for `module` on this thread.
  static std::optional<Recomputation> of(const torch::nn::Module& module);

 private:
  const CheckpointedCall* previous_;
  const torch::nn::Module* module_;
  std::optional<Recomputation> how_;
};

/// Returns how this call of the module is recomputed: as the CheckpointedCall says, else as the
/// mark says; nullopt inside a region and where no gradients are recorded.
std::optional<Recomputation> recomputation_of(const torch::nn::Module& module);

/// Runs `run` on `args` as a region of the modules, which stay alive with it. `name`: for errors.
c10::IValue run_recomputed(
    const Recomputation& how,
    std::string name,
    const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
    std::function<c10::IValue(const c10::IValue&)> run,
    const c10::IValue& args);

/// Runs `plain`, as a region where the module is to be recomputed. Invokers call this. A Sequential
/// makes regions of its children itself.
c10::IValue invoke_module(
    torch::nn::Module& module,
    const c10::IValue& args,
    int first,
    int last,
    Invoker plain);

} // namespace tessera::nn
