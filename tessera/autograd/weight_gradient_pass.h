#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include "tessera/autograd/backward_pass.h"
#include "tessera/autograd/gradient_order.h"

namespace tessera {

/// Around torch::autograd::backward of `roots`: while one lives on this thread, gradients of
/// parameters are added to in place where a single node of the graph adds to them. Where several do
/// (tied weights), the engine adds their parts first, as ever: a backward that waits for another
/// rank between them would otherwise let the parts of other microbatches in, in an order that
/// changes from run to run.
///
/// While another rank waits for what this backward computes next, the gradients of weights are
/// deferred, since nobody waits for those (Qi et al. 2023 call the two halves B and W).
/// `catch_up` computes them in the order in which they came, before the pass waits itself and
/// before it ends. A gradient with any post-accumulate hook other than an AdditionHook is computed
/// immediately.
/// Threads: a pass belongs to the thread that opened it; a backward that the engine runs elsewhere
/// (on an accelerator's thread) adds as usual.
/// Cost: one walk over the graph.
class WeightGradientPass : public BackwardPass {
 public:
  /// Who waits for this backward.
  struct Awaited {
    /// Another rank asked for what it computes, and waits for its end.
    bool end = false;
    /// Nodes that ask other ranks; each calls `requested` when it has.
    bool (*node)(const torch::autograd::Node&) = nullptr;
  };

  explicit WeightGradientPass(const std::vector<at::Tensor>& roots);
  WeightGradientPass(const std::vector<at::Tensor>& roots, const Awaited& awaited);
  /// With an order, which outlives this: what it orders is added through it. `targets`: below all
  /// roots of `graph`.
  WeightGradientPass(
      GradientTargets targets,
      const Awaited& awaited,
      GradientOrder& order,
      GradientOrder::GraphPtr graph);

  /// The innermost one of this thread, or nullptr.
  static WeightGradientPass* current();

  /// A pass for a backward of `roots` that a node of this pass's graph runs, such as one that
  /// recomputes its forward. What it orders is added as this graph's: parts that the graph did not
  /// announce (HiddenLeaves) come late.
  /// This pass outlives it.
  std::unique_ptr<WeightGradientPass> inside_of(const std::vector<at::Tensor>& roots) const;

  /// Returns whether a single node of the graph adds to this accumulator.
  bool adds_once(const torch::autograd::Node* accumulator) const;
  void requested() {
    --targets_.requests;
  }
  bool defers() const {
    return awaited_.end || targets_.requests > 0;
  }
  /// Runs an addition to the parameter's gradient later.
  void defer(const at::Tensor& parameter, std::function<void()> addition);
  /// Runs what was deferred. A pass that is left without it has failed, and drops it.
  void catch_up();

  bool orders(const torch::autograd::Node* accumulator) const override {
    return order_ != nullptr && order_->orders(accumulator);
  }
  void add(const torch::autograd::Node* accumulator, std::function<void()> addition) override {
    order_->add(*graph_, accumulator, std::move(addition));
  }
  bool awaits(const torch::autograd::Node* accumulator) const override;

 private:
  struct Deferred {
    std::shared_ptr<torch::autograd::Node> accumulator;
    std::function<void()> addition;
  };

  GradientTargets targets_;
  Awaited awaited_;
  GradientOrder* order_ = nullptr;
  GradientOrder::GraphPtr graph_;
  std::vector<Deferred> deferred_;
};

} // namespace tessera
