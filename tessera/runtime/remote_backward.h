#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/function.h>

#include "tessera/runtime/requires_grad_mask.h"

namespace tessera::runtime {

/// Names a module call that ran on another rank.
struct RemoteCall {
  std::uint64_t id = 0;
  int owner = -1; // pp rank
  int module = -1;
  int microbatch = -1;
};

/// Runs the backward of remote calls.
class BackwardRequester {
 public:
  virtual ~BackwardRequester() = default;
  /// Returns the gradients of a call's inputs from its owner; the task waits for them. With
  /// `inputs_only`, parameters that the call used get none.
  virtual std::vector<at::Tensor> call_backward(
      const RemoteCall& call,
      const std::vector<at::Tensor>& gradients,
      bool inputs_only) = 0;
  /// Returns a module's path, for messages.
  virtual std::string name_of(int module) const = 0;
};

/// The autograd node of a module call that ran on another rank: its backward
/// is a request to that rank. On a CPU the engine runs nodes on the thread that
/// called backward, so waiting here suspends only that task.
/// Source: Karakus et al. 2021, section 4.2 and appendix B.
class RemoteBackward : public torch::autograd::Node {
 public:
  /// `inputs` has an edge for each tensor of the call's arguments, of which `asked` names those
  /// that the owner answers for. One of these may have no edge: a view that was made without
  /// gradient recording, of a tensor that requires a gradient, requires one without having a
  /// history. `requester` outlives every graph that holds this node.
  RemoteBackward(
      torch::autograd::edge_list inputs,
      RequiresGradMask asked,
      BackwardRequester& requester,
      const RemoteCall& call)
      : torch::autograd::Node(std::move(inputs)),
        asked_(std::move(asked)),
        requester_(requester),
        call_(call) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  std::string name() const override {
    return "TesseraRemoteBackward";
  }
  static bool is(const torch::autograd::Node& node) {
    return dynamic_cast<const RemoteBackward*>(&node) != nullptr;
  }

 private:
  RequiresGradMask asked_;
  BackwardRequester& requester_;
  RemoteCall call_;
};

} // namespace tessera::runtime
