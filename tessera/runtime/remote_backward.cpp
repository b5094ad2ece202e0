#include "tessera/runtime/remote_backward.h"

#include <torch/csrc/autograd/graph_task.h>

#include "tessera/base/error.h"
#include "tessera/runtime/plain_backward.h"

namespace tessera::runtime {

torch::autograd::variable_list RemoteBackward::apply(torch::autograd::variable_list&& gradients) {
  if (torch::GradMode::is_enabled()) {
    throw UserError(str(
        "create_graph is not supported across ranks: a gradient of a gradient would have to cross "
        "the pipeline to module '",
        requester_.name_of(call_.module),
        "'. Place the modules that it goes through on pipeline rank 0 (the key partition), or "
        "train replicas without a pipeline"));
  }
  // torch::autograd::grad asks for gradients of chosen tensors and adds to none.
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  const bool inputs_only = chosen != nullptr && !chosen->empty();
  if (!inputs_only && in_users_backward()) {
    refuse_users_backward("module '" + requester_.name_of(call_.module) + "' on another rank");
  }
  if (inputs_only && torch::autograd::get_current_graph_task_keep_graph()) {
    throw UserError(
        str("torch::autograd::grad with retain_graph or create_graph reached module '",
            requester_.name_of(call_.module),
            "' on another rank, which keeps no graph for a second backward; call it without "
            "them, on a forward of its own, or put the modules that it passes on one rank"));
  }
  const auto received = requester_.call_backward(call_, gradients, inputs_only);
  torch::autograd::variable_list result(num_outputs());
  std::size_t at = 0;
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (asked_[i]) {
      result[i] = received.at(at++);
    }
  }
  TESSERA_CHECK(at == received.size());
  return result;
}

} // namespace tessera::runtime
