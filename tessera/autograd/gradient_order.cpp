#include "tessera/autograd/gradient_order.h"

#include <unordered_set>
#include <utility>

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/autograd/addition_hook.h"
#include "tessera/autograd/backward_pass.h"
#include "tessera/base/error.h"
#include "tessera/tensor/torch_compat.h"

namespace tessera {

namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

/// Accumulates as libtorch's AccumulateGrad does. It takes the tensor itself as
/// the gradient when no more than `references` hold it.
void accumulate(at::Tensor variable, const at::Tensor& gradient, std::size_t references) {
  const at::NoGradGuard no_grad;
  at::Tensor& sum = variable.mutable_grad();
  AccumulateGrad::accumulateGrad(
      variable, sum, gradient, references, [&](at::Tensor&& update) { sum = std::move(update); });
}

/// Takes what the engine would add, so that it is added in the pass's order.
/// Gradients that something else computes pass through.
class TakeForOrder : public OrderedAdditionHook {
 public:
  explicit TakeForOrder(AccumulateGrad* accumulator) : accumulator_(accumulator) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& inputs) override {
    BackwardPass* pass = BackwardPass::current();
    if (pass == nullptr || !pass->orders(accumulator_) || !inputs.at(0).defined() ||
        at::GradMode::is_enabled() || !accumulator_->variable.requires_grad()) {
      return inputs;
    }
    const at::Tensor& leaf = accumulator_->variable;
    at::Tensor gradient = inputs[0];
    if constexpr (kAccumulatorCallsTensorHooks) {
      for (const auto& hook : torch::autograd::impl::hooks(leaf)) {
        gradient = (*hook)({gradient}).at(0);
      }
    }
    // This function accounts for two references: the engine's list and `gradient`.
    const bool shared = gradient.is_same(inputs[0]) && gradient.use_count() > 2;
    pass->add(accumulator_, [leaf, gradient = std::move(gradient), shared] {
      accumulate(leaf, gradient, shared ? 0 : gradient.use_count());
    });
    return {at::Tensor()};
  }

 private:
  AccumulateGrad* accumulator_;
};

} // namespace

GradientTargets targets_below(
    const std::vector<at::Tensor>& roots,
    bool (*is_request)(const Node&)) {
  GradientTargets targets;
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> open;
  const auto reach = [&](const torch::autograd::Edge& edge) {
    if (!edge.is_valid()) {
      return;
    }
    const Node* node = edge.function.get();
    if (node->num_outputs() == 0) {
      ++targets.additions[node];
    }
    if (!seen.insert(node).second) {
      return;
    }
    if (node->num_outputs() != 0) {
      open.push_back(node);
    }
    // A remote call whose arguments need no gradient ends the graph, and still sends a request.
    if (is_request != nullptr && is_request(*node)) {
      ++targets.requests;
    }
  };
  for (const at::Tensor& root : roots) {
    if (root.defined() && root.requires_grad()) {
      reach(torch::autograd::impl::gradient_edge(root));
    }
  }
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    if (const auto* hiding = dynamic_cast<const HiddenLeaves*>(node)) {
      const auto& leaves = hiding->hidden_leaves();
      targets.hidden.insert(targets.hidden.end(), leaves.begin(), leaves.end());
    }
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      reach(edge);
    }
  }
  return targets;
}

struct GradientOrder::Graph {
  int position = 0;
  bool late = false; // it was unknown when its microbatch started
  std::unordered_set<const Node*> open; // accumulators that it may still add to
};

void GradientOrder::begin(const std::vector<at::Tensor>& parameters, std::vector<int> positions) {
  positions_ = std::move(positions);
  started_.assign(positions_.size(), false);
  // Leaves that a script made for one step only end with it.
  std::erase_if(lanes_, [](const auto& entry) {
    return static_cast<const AccumulateGrad&>(*entry.second.accumulator).variable.use_count() == 1;
  });
  for (auto& [accumulator, lane] : lanes_) {
    reset(lane);
  }
  for (const at::Tensor& parameter : parameters) {
    if (parameter.requires_grad()) {
      join(parameter);
    }
  }
}

void GradientOrder::reset(Lane& lane) const {
  const std::size_t count = positions_.size();
  lane.pending.assign(count, 0);
  lane.kept.assign(count, {});
  lane.late.assign(count, {});
  lane.next = 0;
}

void GradientOrder::join(const at::Tensor& leaf) {
  const auto accumulator = torch::autograd::impl::grad_accumulator(leaf);
  auto* node = dynamic_cast<AccumulateGrad*>(accumulator.get());
  if (node == nullptr || lanes_.contains(node)) {
    return;
  }
  Lane& lane = lanes_[node];
  lane.accumulator = accumulator;
  reset(lane);
  node->add_pre_hook(std::make_unique<TakeForOrder>(node));
  // Microbatches that have started do not refer to a leaf that is made later, such as a slice of
  // the batch: they add nothing to it, and a script may read its gradient after the backward.
  advance(lane);
}

GradientOrder::GraphPtr GradientOrder::expect(int microbatch, const GradientTargets& targets) {
  auto graph = std::make_shared<Graph>();
  graph->position = positions_.at(microbatch);
  graph->late = started_.at(graph->position);
  for (const auto& [node, count] : targets.additions) {
    announce(graph, node);
  }
  for (const at::Tensor& leaf : targets.hidden) {
    if (leaf.requires_grad()) {
      announce(graph, torch::autograd::impl::grad_accumulator(leaf).get());
    }
  }
  return graph;
}

void GradientOrder::announce(const GraphPtr& graph, const Node* accumulator) {
  if (!lanes_.contains(accumulator)) {
    const auto* node = dynamic_cast<const AccumulateGrad*>(accumulator);
    if (node == nullptr) {
      return; // another end of the graph
    }
    join(node->variable);
  }
  if (!graph->late && graph->open.insert(accumulator).second) {
    ++lanes_.at(accumulator).pending[graph->position];
  }
}

void GradientOrder::started(int microbatch) {
  const int position = positions_.at(microbatch);
  if (started_.at(position)) {
    return;
  }
  started_[position] = true;
  for (auto& [accumulator, lane] : lanes_) {
    if (lane.next == position) {
      advance(lane);
    }
  }
}

void GradientOrder::add(Graph& graph, const Node* accumulator, std::function<void()> addition) {
  Lane& lane = lanes_.at(accumulator);
  if (!graph.open.contains(accumulator)) {
    lane.late[graph.position].push_back(std::move(addition));
    return;
  }
  if (graph.position == lane.next) {
    addition();
    tell_added(*lane.accumulator);
  } else {
    lane.kept[graph.position].push_back(std::move(addition));
  }
  deliver(graph, lane);
}

void GradientOrder::deliver(Graph& graph, Lane& lane) {
  graph.open.erase(lane.accumulator.get());
  --lane.pending[graph.position];
  if (graph.position == lane.next) {
    advance(lane);
  }
}

void GradientOrder::ended(Graph& graph) {
  while (!graph.open.empty()) {
    deliver(graph, lanes_.at(*graph.open.begin()));
  }
}

void GradientOrder::advance(Lane& lane) {
  const int count = static_cast<int>(positions_.size());
  while (lane.next < count && started_[lane.next] && lane.pending[lane.next] == 0) {
    if (++lane.next == count) {
      for_each_addition_hook(*lane.accumulator, [](const AdditionHook& hook) { hook.complete(); });
      return;
    }
    for (auto& addition : std::exchange(lane.kept[lane.next], {})) {
      addition();
      tell_added(*lane.accumulator);
      addition = nullptr; // its tensors are free now
    }
  }
}

void GradientOrder::finish() {
  for (auto& [accumulator, lane] : lanes_) {
    for (auto& additions : lane.kept) {
      for (auto& addition : std::exchange(additions, {})) {
        addition();
        tell_added(*lane.accumulator);
      }
    }
  }
  for (auto& [accumulator, lane] : lanes_) {
    for (auto& additions : lane.late) {
      for (auto& addition : std::exchange(additions, {})) {
        for_each_addition_hook(
            *lane.accumulator, [](const AdditionHook& hook) { hook.before_late(); });
        addition();
        tell_added(*lane.accumulator);
      }
    }
  }
}

} // namespace tessera
