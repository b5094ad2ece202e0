#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/autograd/addition_hook.h"
#include "tessera/autograd/weight_gradient_pass.h"

/// Gradients of weights, added where they belong. With microbatches a product's
/// weight gradient is otherwise written to a new tensor, and that tensor added
/// to the sum of the microbatches before: three passes over memory of the
/// weight's size for each product and microbatch, as long as a quarter of the
/// product for few rows. A matrix product can add to its result for nothing.
namespace tessera {

/// While one lives on this thread, products of a matrix with a parameter
/// (at::mm and at::addmm, so torch::nn::Linear, functional::linear and matmul)
/// and look-ups in a parameter (at::embedding, not sparse) are recorded by
/// nodes whose backward adds to the parameter's gradient where
/// `addable_gradient` allows it. The mathematics is libtorch's; sums of
/// microbatches may differ from it by rounding.
///
/// How: kernels of the dispatch key Autograd of this device, which hand over to
/// libtorch's own outside a scope and for all other operands.
/// Threads: a scope belongs to the thread that opened it; backward may run on
/// any. Scopes nest.
class WeightGradientScope {
 public:
  WeightGradientScope();
  ~WeightGradientScope();
  WeightGradientScope(const WeightGradientScope&) = delete;
  WeightGradientScope& operator=(const WeightGradientScope&) = delete;

  /// Returns whether one lives on this thread.
  static bool active();

 private:
  bool previous_;
};

/// For the backward of a node that has `parameter` as an input: the gradient to which the node adds
/// its part in place, returning an undefined tensor instead of it. Where there is no gradient yet,
/// zeros are made, so that the order of additions does not depend on what a step found.
///
/// Undefined when the part must be returned as usual: outside a WeightGradientPass; where a
/// GradientOrder decides when it is added; when other nodes add to this parameter too; when
/// somebody asks for the part (create_graph, torch::autograd::grad, a hook on the parameter); or
/// when the gradient is not a dense tensor of the parameter's kind, which an f32 sum of 16-bit
/// gradients (F32Gradients) never is. Threads: as the backward.
at::Tensor addable_gradient(const at::Tensor& parameter);

/// A matrix of a product as a parameter: itself, or the transpose of it.
struct WeightOperand {
  at::Tensor parameter; // undefined: it is no parameter, nor the transpose of one
  bool transposed = false; // the product is with parameter^T
};

/// Returns which trained parameter `matrix` is, for nodes of other products than at::mm and
/// at::addmm. Threads: any.
WeightOperand weight_operand(const at::Tensor& matrix);

/// rows^T x, the gradient of a weight [out, in] with `rows` [n, out] and `x` [n, in]. It is added
/// to the weight's gradient, in the turn of a GradientOrder where there is one, and the result is
/// undefined; or it is returned where `addable_gradient` does not allow that. Where 16-bit
/// gradients are added up in f32, the product is made in 16 bits and added.
at::Tensor
add_weight_gradient(const at::Tensor& weight, const at::Tensor& rows, const at::Tensor& x);

/// Returns whether rows^T x will be added to the weight's gradient later, because another rank
/// waits for what this backward computes next (WeightGradientPass). It is added in place where
/// `addable_gradient` allows that; else as the engine adds a gradient that a node returns, so that
/// an order keeps no operands. Shapes: as add_weight_gradient. Threads: as the backward.
bool defer_weight_gradient(const at::Tensor& weight, const at::Tensor& rows, const at::Tensor& x);

} // namespace tessera
