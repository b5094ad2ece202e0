#include "tessera/optim/normwise.h"

namespace tessera::optim {

at::Tensor closure_loss(const torch::optim::Optimizer::LossClosure& closure) {
  if (!closure) {
    return {};
  }
  const at::AutoGradMode enabled(true);
  return closure();
}

at::Tensor gradient_of(const at::Tensor& parameter) {
  return parameter.grad().detach().to(parameter.scalar_type());
}

std::vector<NormOf> gradients_of(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::vector<NormOf> gradients;
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) {
        gradients.push_back({parameter, parameter.grad().detach()});
      }
    }
  }
  return gradients;
}

} // namespace tessera::optim
