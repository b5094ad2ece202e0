#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "tessera/autograd/dispatch_mode.h"

namespace tessera::tracer {

/// Modules built inside the scope hold parameters and buffers without memory
/// ("delayed": meta tensors whose operations are recorded). `materialize` gives
/// them memory and values later, for all of a model or the part that a rank
/// owns. A scope with enabled = false inside another one builds in the usual
/// way.
///
/// What is delayed: every tensor made without naming a device, and whatever is
/// computed from a delayed tensor, inside the scope or after it: a model may be
/// initialised again, cast or tied before it is materialized. Tensors made for
/// a device by name, and torch::tensor({...}), are made at once.
///
/// Random numbers: every recorded operation draws one number from the default
/// CPU generator and runs under a generator seeded with it. So values depend on
/// the seed and on the program, not on which tensors are materialized, in which
/// order, or on which rank; they differ from those of a construction without
/// the scope, which draws all its numbers from one stream.
///
/// Throws, from operators inside: ConfigError when numbers of a delayed tensor
/// are read (item(), control flow), or written to a tensor with memory.
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
  std::optional<DispatchScope> scope_;
};

/// Whether the tensor has shape but no memory yet.
bool is_delayed(const at::Tensor& tensor);

/// Whether a parameter or buffer of `module` or of its children is delayed.
bool has_delayed(const torch::nn::Module& module);

/// Gives delayed tensors memory on `device` and executes what was recorded for
/// them. Tensors keep their identity: handles taken before (members of modules,
/// parameters in an optimizer, gradient accumulators and their hooks) see the
/// values; tied tensors and views of one memory stay so, also over several
/// calls. Tensors that are not delayed are left alone.
///
/// Cost: time of the recorded operations; memory of the tensors, plus, while a
/// tensor is made, of what it is computed from.
/// Threads: one thread at a time for one model. Not collective.
void materialize(at::TensorList tensors, at::Device device = at::kCPU);

/// All parameters and buffers of a module and its children.
void materialize(torch::nn::Module& module, at::Device device = at::kCPU);

} // namespace tessera::tracer

namespace tessera {

/// Modules built in this scope get no memory for their parameters until the
/// first step has decided where they live; each rank then fills only its own,
/// with the values its seed gives. For models that do not fit into one process.
/// Source: Karakus et al. 2021, appendix I.5.
using delay_param_initialization = tracer::DelayedInitScope;

} // namespace tessera
