#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

/// One order of additions. Backwards of several microbatches reach a rank in an
/// order that depends on timing, and floating-point sums depend on their order.
namespace tessera {

/// The leaves and nodes that the backward of some roots will reach.
struct GradientTargets {
  /// Ends of the graph (accumulators of leaves, mostly), with the number of
  /// edges that lead to each.
  std::unordered_map<const torch::autograd::Node*, int> additions;
  /// Leaves of nodes that are HiddenLeaves.
  std::vector<at::Tensor> hidden;
  /// Nodes for which `is_request` holds.
  int requests = 0;
};

/// What a node also is that adds to leaves to which none of its edges leads, such as one whose
/// backward runs a graph of its own.
class HiddenLeaves {
 public:
  virtual ~HiddenLeaves() = default;
  /// Those to which it may add.
  virtual const std::vector<at::Tensor>& hidden_leaves() const = 0;
};

/// Walks the graph below `roots` once. `is_request` may be null.
GradientTargets targets_below(
    const std::vector<at::Tensor>& roots,
    bool (*is_request)(const torch::autograd::Node&));

/// The hook that a GradientOrder puts on accumulators. It changes nothing about
/// how a gradient is computed, so additions in place ignore it.
class OrderedAdditionHook : public torch::autograd::FunctionPreHook {};

/// Adds the gradients of a step to each parameter microbatch by microbatch, in
/// the order given to `begin`, whatever the order in which they are computed.
///
/// A contribution whose turn has come is added at once. One that comes early is
/// kept (the operands of a product, else the gradient itself) until the earlier
/// microbatches cannot add to this parameter any more, which the graphs that are
/// known when a microbatch's backward starts tell. Contributions of one
/// microbatch are added as they come, since a microbatch is sequential.
/// Contributions that those graphs do not announce (a second backward of the
/// same microbatch, a backward inside a module's backward, the second of two
/// recomputed regions that use one parameter) are added by
/// `finish`, again microbatch by microbatch. So the sequence of additions is a
/// function of the flow of the step alone.
///
/// Not collective. Threads: whichever thread holds the rank's baton.
class GradientOrder {
 public:
  /// The backward of one graph, which adds at most once to each accumulator.
  struct Graph;
  using GraphPtr = std::shared_ptr<Graph>;

  GradientOrder() = default;
  GradientOrder(const GradientOrder&) = delete;
  GradientOrder& operator=(const GradientOrder&) = delete;

  /// Starts a step and drops what a failed step left. `parameters`: those of
  /// this rank; other leaves join when a graph reaches them. `positions`: for
  /// each microbatch its place in the order, each of 0 .. n-1 once.
  void begin(const std::vector<at::Tensor>& parameters, std::vector<int> positions);
  /// A graph of this microbatch exists, and its backward may follow.
  GraphPtr expect(int microbatch, const GradientTargets& targets);
  /// The backward of this microbatch starts: every graph that its announced
  /// contributions come from is known. Calls after the first do nothing.
  void started(int microbatch);
  /// This graph's backward is over: what it did not add will not come.
  void ended(Graph& graph);
  /// Adds what is still kept. The step must have had all its backwards.
  void finish();

  /// Returns whether additions of this accumulator go through `add`.
  bool orders(const torch::autograd::Node* accumulator) const {
    return lanes_.contains(accumulator);
  }
  /// Runs `addition` now or later. The accumulator's AdditionHooks are called
  /// directly after it has run.
  void add(Graph& graph, const torch::autograd::Node* accumulator, std::function<void()> addition);

 private:
  using Additions = std::vector<std::function<void()>>;
  /// The additions to one parameter; vectors are indexed by position.
  struct Lane {
    std::shared_ptr<torch::autograd::Node> accumulator;
    std::vector<int> pending; // graphs that may still add
    std::vector<Additions> kept;
    std::vector<Additions> late;
    int next = 0; // the lowest position that may still add
  };

  void join(const at::Tensor& leaf);
  void announce(const GraphPtr& graph, const torch::autograd::Node* accumulator);
  void reset(Lane& lane) const;
  void deliver(Graph& graph, Lane& lane);
  void advance(Lane& lane);

  std::vector<int> positions_;
  std::vector<bool> started_; // by position
  std::unordered_map<const torch::autograd::Node*, Lane> lanes_;
};

} // namespace tessera
