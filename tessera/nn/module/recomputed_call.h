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
/// Takes the mark away.
void drop_recomputation(const torch::nn::Module& module);
/// What the mark says, not what a call that lives says.
std::optional<Recomputation> marked_recomputation(const torch::nn::Module& module);

/// Whether any module or call of this process was ever to be recomputed: false is the fast path of
/// a call.
bool recomputes();
/// From now on it is true.
void expect_recomputation();

/// While it lives, this thread's calls of one module are recomputed as it says; with nothing said
/// it does nothing.
class CheckpointedCall {
 public:
  CheckpointedCall(const torch::nn::Module& module, std::optional<Recomputation> how);
  ~CheckpointedCall();
  CheckpointedCall(const CheckpointedCall&) = delete;
  CheckpointedCall& operator=(const CheckpointedCall&) = delete;

  /// What the innermost one for `module` on this thread says.
  static std::optional<Recomputation> of(const torch::nn::Module& module);

 private:
  const CheckpointedCall* previous_;
  const torch::nn::Module* module_;
  std::optional<Recomputation> how_;
};

/// How this call of the module is to be recomputed: as the call says, or the mark; nothing inside
/// of a region and where no gradients are recorded.
std::optional<Recomputation> recomputation_of(const torch::nn::Module& module);

/// Runs `run` on `args` as a region of the modules, which stay alive with it. `name`: for errors.
c10::IValue run_recomputed(
    const Recomputation& how,
    std::string name,
    const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
    std::function<c10::IValue(const c10::IValue&)> run,
    const c10::IValue& args);

/// What an invoker does: `plain`, as a region where the module is to be recomputed. A Sequential
/// makes regions of its children itself.
c10::IValue invoke_module(
    torch::nn::Module& module,
    const c10::IValue& args,
    int first,
    int last,
    Invoker plain);

} // namespace tessera::nn
