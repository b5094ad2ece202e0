#pragma once

#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

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

 private:
  bool previous_;
};

/// Around torch::autograd::backward of `roots`: while one lives on this thread,
/// gradients of parameters are added to in place where a single node of the
/// graph adds to them. Where several do (tied weights), the engine adds their
/// parts first, as ever: a backward that waits for another rank between them
/// would else let the parts of other microbatches in, in an order that changes
/// from run to run.
/// Threads: a pass belongs to the thread that opened it; a backward that the
/// engine runs elsewhere (on an accelerator's thread) adds as usual.
/// Cost: one walk over the graph.
class WeightGradientPass {
 public:
  explicit WeightGradientPass(const std::vector<at::Tensor>& roots);
  ~WeightGradientPass();
  WeightGradientPass(const WeightGradientPass&) = delete;
  WeightGradientPass& operator=(const WeightGradientPass&) = delete;

  /// Of a parameter.
  bool adds_once(const torch::autograd::Node* accumulator) const {
    const auto found = additions_.find(accumulator);
    return found != additions_.end() && found->second == 1;
  }

 private:
  std::unordered_map<const torch::autograd::Node*, int> additions_;
  const WeightGradientPass* previous_;
};

/// For the backward of a node that has `parameter` as an input: the gradient to
/// which it adds its part, returning an undefined tensor in place of it; zeros
/// are made where there is none yet, so that the order of additions does not
/// depend on what a step found. Not defined when the part must be returned as
/// usual: outside a WeightGradientPass, when other nodes add to this parameter
/// too, when the part is asked for (create_graph, torch::autograd::grad, a hook
/// on the parameter) or the gradient is not a dense tensor of the parameter's
/// kind.
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
