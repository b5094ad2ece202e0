#pragma once

#include <cstddef>
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
  /// What is computed later.
  struct Deferral {
    std::function<void()> compute;
    /// Of what it holds meanwhile. Units: bytes.
    std::size_t held = 0;
    /// Whether `compute` adds what the engine would, with all that hears of it (add_as_the_engine),
    /// rather than a part that this pass has to order and report.
    bool as_the_engine = false;
  };

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
  /// announce (HiddenLeaves) come late. What it defers, this pass computes; what that holds
  /// meanwhile is limited by `freed`, since who recomputes wants the memory.
  /// This pass outlives it.
  std::unique_ptr<WeightGradientPass> inside_of(const std::vector<at::Tensor>& roots);

  /// Returns whether a single node of the graph adds to this accumulator.
  bool adds_once(const torch::autograd::Node* accumulator) const;
  void requested() {
    --targets_.requests;
  }
  bool defers() const {
    return outer_ != nullptr ? outer_->defers() : awaited_.end || targets_.requests > 0;
  }
  /// Tells that this backward has freed what its forward kept, so that as much may be held.
  void freed(std::size_t bytes);
  /// Returns whether a product that holds these operands may be deferred. In a pass inside of
  /// another one: what was freed is enough for them, and the outer graph reaches the parameter
  /// once, since sums must not depend on which of several parts had to wait.
  bool may_hold(const at::Tensor& parameter, const std::vector<at::Tensor>& operands) const;
  /// Runs an addition to the parameter's gradient later.
  void defer(const at::Tensor& parameter, Deferral deferral);
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
    Deferral deferral;
  };
  bool reaches_once(const torch::autograd::Node* accumulator) const;

  GradientTargets targets_;
  WeightGradientPass* outer_ = nullptr;
  std::size_t freed_ = 0;
  std::size_t held_ = 0;
  Awaited awaited_;
  GradientOrder* order_ = nullptr;
  GradientOrder::GraphPtr graph_;
  std::vector<Deferred> deferred_;
};

/// Returns the bytes that the tensors keep in memory: those of their storages, once for each
/// tensor.
std::size_t held_bytes(const std::vector<at::Tensor>& tensors);

/// Adds a gradient to the parameter of this accumulator as the engine does, hooks included.
void add_as_the_engine(torch::autograd::Node& accumulator, at::Tensor gradient);

} // namespace tessera
