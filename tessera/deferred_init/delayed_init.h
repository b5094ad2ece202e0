#pragma once

#include <memory>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace tessera {
class DispatchScope;
}

namespace tessera::tracer {

/// Delays the parameters and buffers of modules built inside the scope: they hold no memory
/// ("delayed" tensors are meta tensors whose operations are recorded). `materialize` gives them
/// memory and values later, for all of a model or for the part that a rank owns. A scope with
/// enabled = false inside another one builds in the usual way.
///
/// The scope delays all tensors made without naming a device. Every result computed from a delayed
/// tensor is delayed too, also after the scope, so a model may be initialised again, cast or tied
/// before it is materialized. Tensors made for a named device, and torch::tensor({...}), are not
/// delayed.
///
/// Random numbers: every recorded operation draws one number from the default CPU generator and
/// runs under a generator seeded with it. Values therefore depend on the seed and on the program,
/// but not on which tensors are materialized, in which order, or on which rank. They differ from
/// those of a construction without the scope, which draws all its numbers from one stream.
///
/// Operators on delayed tensors throw ConfigError when the program reads the numbers of a delayed
/// tensor (item(), control flow), or writes them to a tensor with memory.
/// Threads: the scope belongs to its thread. Not collective.
/// Source: Karakus et al. 2021, appendix I.5.
class DelayedInitScope {
 public:
  explicit DelayedInitScope(bool enabled = true);
  ~DelayedInitScope();
  DelayedInitScope(const DelayedInitScope&) = delete;
  DelayedInitScope& operator=(const DelayedInitScope&) = delete;

 private:
  bool previous_;
  std::unique_ptr<DispatchScope> scope_;
};

/// Returns whether the tensor has a shape but no memory yet.
bool is_delayed(const at::Tensor& tensor);

/// Returns whether a parameter or buffer of `module` or of its children is delayed.
bool has_delayed(const torch::nn::Module& module);

/// Gives delayed tensors memory on `device` and executes the operations recorded for them. Tensors
/// keep their identity, so handles taken before (members of modules, parameters in an optimizer,
/// gradient accumulators and their hooks) see the values; tied tensors and views of one memory stay
/// tied, also over several calls. Tensors that are not delayed stay unchanged.
///
/// Cost: time of the recorded operations; memory of the tensors and, while a tensor is made, of the
/// tensors it is computed from.
/// Threads: one thread at a time for one model. Not collective.
/// Throws: ConfigError when a large tensor that a recorded operation reads was changed meanwhile.
void materialize(at::TensorList tensors, at::Device device = at::kCPU);

/// Gives a parameter or buffer the memory, shape and dtype of `values` in the place of what it had,
/// if anything. Handles, gradient accumulators and their hooks stay. Not collective.
void give_memory(const at::Tensor& tensor, const at::Tensor& values);

/// Materializes all parameters and buffers of a module and its children.
void materialize(torch::nn::Module& module, at::Device device = at::kCPU);

} // namespace tessera::tracer

namespace tessera {

/// Delays the parameters of modules built in this scope until the first step has decided where they
/// live. Each rank then fills only its own, with the values that its seed gives. It is meant for
/// models that do not fit into one process.
/// Source: Karakus et al. 2021, appendix I.5.
using delay_param_initialization = tracer::DelayedInitScope;

} // namespace tessera
