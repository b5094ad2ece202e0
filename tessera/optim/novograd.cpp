#include "tessera/optim/novograd.h"

#include <cmath>
#include <memory>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/optim/normwise.h"

namespace tessera::optim {

namespace {

NovoGradParamState& novograd_state(state::OptimizerStateMap& states, const at::Tensor& parameter) {
  auto& slot = states[state::optimizer_state_key(parameter)];
  if (slot == nullptr) {
    auto made = std::make_unique<NovoGradParamState>();
    made->exp_avg = at::zeros_like(parameter, at::MemoryFormat::Contiguous);
    slot = std::move(made);
  }
  return static_cast<NovoGradParamState&>(*slot);
}

void update(
    const at::Tensor& given,
    const NovoGradOptions& options,
    NovoGradParamState& state,
    double norm) {
  const auto [beta1, beta2] = options.betas();
  const bool first = state.step == 0 && !options.init_zero();
  ++state.step;
  state.norm =
      first ? norm : std::sqrt(beta2 * state.norm * state.norm + (1 - beta2) * norm * norm);
  const auto steps = static_cast<double>(state.step);
  const double correction1 = options.bias_correction() ? 1 - std::pow(beta1, steps) : 1;
  const double correction2 = options.bias_correction() ? 1 - std::pow(beta2, steps) : 1;
  const double denominator = state.norm / std::sqrt(correction2) + options.eps();
  at::Tensor parameter = given.detach();
  at::Tensor enters = gradient_of(given);
  if (options.reg_inside_moment()) {
    enters = (enters / denominator).add_(parameter, options.weight_decay());
  }
  state.exp_avg.mul_(beta1).add_(enters, options.grad_averaging() ? 1 - beta1 : 1.0);
  at::Tensor direction = state.exp_avg / correction1;
  if (!options.reg_inside_moment()) {
    direction = direction.div_(denominator).add_(parameter, options.weight_decay());
  }
  parameter.add_(direction, -options.lr());
}

} // namespace

NovoGrad::NovoGrad(std::vector<at::Tensor> parameters, const NovoGradOptions& options)
    : NovoGrad({torch::optim::OptimizerParamGroup(std::move(parameters))}, options) {}

NovoGrad::NovoGrad(
    std::vector<torch::optim::OptimizerParamGroup> groups,
    const NovoGradOptions& options)
    : Optimizer(std::move(groups), std::make_unique<NovoGradOptions>(options)) {}

at::Tensor NovoGrad::step(LossClosure closure) {
  const at::Tensor loss = closure_loss(closure);
  const at::NoGradGuard no_grad;
  const std::vector<double> norms = norms_of(gradients_of(param_groups_)).each;
  auto norm = norms.begin();
  for (auto& group : param_groups_) {
    const auto& options = static_cast<const NovoGradOptions&>(group.options());
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) {
        update(parameter, options, novograd_state(state_, parameter), *norm++);
      }
    }
  }
  return loss;
}

} // namespace tessera::optim
