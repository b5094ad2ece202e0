#pragma once

#include <map>
#include <string>

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

namespace tessera::nn {

/// Values by name that take the place of what an init hook says: "use_normal",
/// "distribute_embedding", whatever the distributed module knows.
using OptionValues = std::map<std::string, c10::IValue>;

/// Modules that are made in this scope are marked for tensor parallelism (or,
/// with `enabled` false, are not); the innermost scope wins. DistributedModel
/// replaces marked modules that have a distributed implementation. Only modules
/// in holders of this library can be marked.
/// Threads: the scope belongs to its thread. Not collective.
/// Source: Karakus et al. 2021, appendix E.2.
class TensorParallelismScope {
 public:
  explicit TensorParallelismScope(bool enabled = true, OptionValues options = {});
  ~TensorParallelismScope();
  TensorParallelismScope(const TensorParallelismScope&) = delete;
  TensorParallelismScope& operator=(const TensorParallelismScope&) = delete;

 private:
  bool previous_enabled_;
  OptionValues previous_options_;
};

/// Marks a module and all modules inside it, after they were made and before
/// the model is wrapped. Not collective.
/// Throws: ConfigError when there is nothing to mark, since neither the module
/// nor any inside it is held by a holder of this library.
/// Source: Karakus et al. 2021, appendix E.2.
void set_tensor_parallelism(
    torch::nn::Module& module,
    bool enabled = true,
    const OptionValues& options = {});

bool is_marked_tensor_parallel(const torch::nn::Module& module);
OptionValues tensor_parallel_options(const torch::nn::Module& module);

} // namespace tessera::nn

namespace tessera {

using tensor_parallelism = nn::TensorParallelismScope;
using nn::set_tensor_parallelism;

/// Of a holder: `set_tensor_parallelism(model->embedding)`.
template <typename Holder>
requires requires(const Holder& holder) {
  holder.ptr();
}
void set_tensor_parallelism(
    const Holder& holder,
    bool enabled = true,
    const nn::OptionValues& options = {}) {
  nn::set_tensor_parallelism(*holder.ptr(), enabled, options);
}

} // namespace tessera
