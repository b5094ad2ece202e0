#include "tessera/runtime/remote_backward.h"

#include "tessera/base/error.h"
#include "tessera/runtime/server.h"

namespace tessera::runtime {

torch::autograd::variable_list RemoteBackward::apply(torch::autograd::variable_list&& gradients) {
  if (torch::GradMode::is_enabled()) {
    throw UserError(
        "create_graph is not supported across ranks: a gradient of a gradient "
        "would have to cross the pipeline");
  }
  const auto received = server_.call_backward(call_, owner_, module_, microbatch_, gradients);
  // The owner answers for the inputs that need a gradient, in order.
  torch::autograd::variable_list result(num_outputs());
  std::size_t at = 0;
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (next_edge(i).is_valid()) {
      result[i] = received.at(at++);
    }
  }
  TESSERA_CHECK(at == received.size());
  return result;
}

} // namespace tessera::runtime
