#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include "tessera/autograd/gradient_order.h"

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

  /// Whether one lives on this thread.
  static bool active();

 private:
  bool previous_;
};

/// Around torch::autograd::backward of `roots`: while one lives on this thread,
/// gradients of parameters are added to in place where a single node of the
/// graph adds to them. Where several do (tied weights), the engine adds their
/// parts first, as ever: a backward that waits for another rank between them
/// would else let the parts of other microbatches in, in an order that changes
/// from run to run.
///
/// While another rank waits for what this backward computes next, products for
/// weights are put off: nobody waits for those (Qi et
/// al. 2023 call the two halves B and W). `catch_up` computes them in the order
/// in which they came, before the pass waits itself and before it ends. Not put
/// off is what something hears of by another hook than an AdditionHook.
/// Threads: a pass belongs to the thread that opened it; a backward that the
/// engine runs elsewhere (on an accelerator's thread) adds as usual.
/// Cost: one walk over the graph.
class WeightGradientPass {
 public:
  /// Who waits for this backward.
  struct Awaited {
    /// Its end: it computes what another rank asked for.
    bool end = false;
    /// Nodes that ask other ranks; each calls `requested` when it has.
    bool (*node)(const torch::autograd::Node&) = nullptr;
  };

  explicit WeightGradientPass(const std::vector<at::Tensor>& roots);
  WeightGradientPass(const std::vector<at::Tensor>& roots, const Awaited& awaited);
  /// With an order, which outlives this: what it orders is added through it.
  /// `targets`: below all roots of `graph`.
  WeightGradientPass(
      GradientTargets targets,
      const Awaited& awaited,
      GradientOrder& order,
      GradientOrder::GraphPtr graph);
  ~WeightGradientPass();
  WeightGradientPass(const WeightGradientPass&) = delete;
  WeightGradientPass& operator=(const WeightGradientPass&) = delete;

  /// Of a parameter.
  bool adds_once(const torch::autograd::Node* accumulator) const {
    const auto found = targets_.additions.find(accumulator);
    return found != targets_.additions.end() && found->second == 1;
  }

  /// The innermost one of this thread, or none.
  static WeightGradientPass* current();
  void requested() {
    --targets_.requests;
  }
  bool puts_off() const {
    return awaited_.end || targets_.requests > 0;
  }
  /// The parameter's gradient += rows^T x, later.
  void put_off(at::Tensor parameter, at::Tensor rows, at::Tensor x);
  /// Whether an order decides when this accumulator is added to.
  bool orders(const torch::autograd::Node* accumulator) const {
    return order_ != nullptr && order_->orders(accumulator);
  }
  /// Of an accumulator that is ordered: see GradientOrder::add.
  void add(const torch::autograd::Node* accumulator, std::function<void()> addition) {
    order_->add(*graph_, accumulator, std::move(addition));
  }
  /// Whether the addition of this node is still to come.
  bool awaits(const torch::autograd::Node* accumulator) const;
  /// Computes what was put off. A pass that is left without it has failed, and
  /// drops it.
  void catch_up();

 private:
  struct PutOff {
    std::shared_ptr<torch::autograd::Node> accumulator;
    std::function<void()> addition;
  };

  GradientTargets targets_;
  Awaited awaited_;
  GradientOrder* order_ = nullptr;
  GradientOrder::GraphPtr graph_;
  std::vector<PutOff> put_off_;
  WeightGradientPass* previous_;
};

/// On the node that adds to a parameter's gradient: calls `added` after every
/// addition, be it the engine's, in place, or put off. `place`, where given, is
/// asked when an addition in place finds no gradient: a dense tensor of the
/// parameter's shape and kind that nobody else reads, whose values are of no
/// meaning, becomes it; an undefined one leaves it to fresh memory. `order`, where
/// given, hears of a GradientOrder's progress.
class AdditionHook : public torch::autograd::FunctionPostHook {
 public:
  struct OnOrder {
    std::function<void()> complete; // no microbatch will add any more, but for late parts
    std::function<void()> before_late; // a part that was not announced is added next
  };

  AdditionHook(
      const torch::autograd::Node* accumulator,
      std::function<void()> added,
      std::function<at::Tensor()> place = {},
      OnOrder order = {})
      : accumulator_(accumulator),
        added_(std::move(added)),
        place_(std::move(place)),
        order_(std::move(order)) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list& inputs) override;
  void added() const {
    added_();
  }
  at::Tensor place() const {
    return place_ ? place_() : at::Tensor();
  }
  void complete() const {
    if (order_.complete) {
      order_.complete();
    }
  }
  void before_late() const {
    if (order_.before_late) {
      order_.before_late();
    }
  }

 private:
  const torch::autograd::Node* accumulator_;
  std::function<void()> added_;
  std::function<at::Tensor()> place_;
  OnOrder order_;
};

/// For the backward of a node that has `parameter` as an input: the gradient to
/// which it adds its part, returning an undefined tensor in place of it; zeros
/// are made where there is none yet, so that the order of additions does not
/// depend on what a step found. Not defined when the part must be returned as
/// usual: outside a WeightGradientPass, where a GradientOrder has to decide when
/// it is added, when other nodes add to this parameter
/// too, when the part is asked for (create_graph, torch::autograd::grad, a hook
/// on the parameter) or the gradient is not a dense tensor of the parameter's
/// kind.
/// Threads: as the backward.
at::Tensor addable_gradient(const at::Tensor& parameter);

/// rows^T x, the gradient of a weight [out, in] with `rows` [n, out] and `x`
/// [n, in]: added to the weight's gradient (then the result is undefined), by a
/// GradientOrder where there is one, or returned, as `addable_gradient` allows.
at::Tensor
add_weight_gradient(const at::Tensor& weight, const at::Tensor& rows, const at::Tensor& x);

} // namespace tessera
