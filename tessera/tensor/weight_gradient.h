#pragma once

#include <ATen/core/Tensor.h>

/// Gradients of weights, added where they belong. With microbatches a product's
/// weight gradient is otherwise written to a new tensor, and that tensor added
/// to the sum of the microbatches before: three passes over memory of the
/// weight's size for each product and microbatch, as long as a quarter of the
/// product for few rows. A matrix product can add to its result for nothing.
namespace tessera {

/// While one lives on this thread, products of a matrix with a parameter
/// (at::mm and at::addmm, so torch::nn::Linear, functional::linear and matmul)
/// and look-ups in a parameter (at::embedding, not sparse) are recorded by
/// nodes whose backward adds to the parameter's gradient, where
/// `addable_gradient` finds one. The mathematics is libtorch's; sums of
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

 private:
  bool previous_;
};

/// For the backward of a node that has `parameter` as an input: the gradient to
/// which it may add its part, returning an undefined tensor in place of it; not
/// defined when the part must be returned as usual. That is so when there is no
/// gradient yet (the first part becomes it without a copy), when the part
/// itself is asked for (create_graph, torch::autograd::grad, a hook on the
/// parameter) and when the gradient is not a dense tensor of the parameter's
/// sizes and dtype.
/// Threads: as the backward.
at::Tensor addable_gradient(const at::Tensor& parameter);

/// rows^T x, the gradient of a weight [out, in] with `rows` [n, out] and `x`
/// [n, in]: added to the weight's gradient (then the result is undefined) or
/// returned, as `addable_gradient` allows.
at::Tensor add_weight_gradient(
    const at::Tensor& weight,
    const at::Tensor& rows,
    const at::Tensor& x);

} // namespace tessera
