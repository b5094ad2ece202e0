#include "tessera/optim/lamb.h"

#include <cmath>
#include <memory>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/optim/normwise.h"

namespace tessera::optim {

namespace {

LambParamState& lamb_state(state::OptimizerStateMap& states, const at::Tensor& parameter) {
  auto& slot = states[state::optimizer_state_key(parameter)];
  if (slot == nullptr) {
    auto made = std::make_unique<LambParamState>();
    made->exp_avg = at::zeros_like(parameter, at::MemoryFormat::Contiguous);
    made->exp_avg_sq = at::zeros_like(parameter, at::MemoryFormat::Contiguous);
    slot = std::move(made);
  }
  return static_cast<LambParamState&>(*slot);
}

/// Adam's update and the decay, to be multiplied by the rate.
at::Tensor direction(
    const at::Tensor& parameter,
    const LambOptions& options,
    LambParamState& state,
    double shrink) {
  const auto [beta1, beta2] = options.betas();
  const at::Tensor gradient = gradient_of(parameter) * shrink;
  ++state.step;
  state.exp_avg.mul_(beta1).add_(gradient, options.grad_averaging() ? 1 - beta1 : 1.0);
  state.exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
  const auto steps = static_cast<double>(state.step);
  const double first = options.bias_correction() ? 1 - std::pow(beta1, steps) : 1;
  const double second = options.bias_correction() ? 1 - std::pow(beta2, steps) : 1;
  at::Tensor update = (state.exp_avg_sq / second).sqrt_().add_(options.eps());
  update = state.exp_avg / first / update;
  return update.add_(parameter, options.weight_decay());
}

struct Update {
  at::Tensor parameter;
  at::Tensor direction;
  const LambOptions* options;
};

} // namespace

Lamb::Lamb(std::vector<at::Tensor> parameters, const LambOptions& options)
    : Lamb({torch::optim::OptimizerParamGroup(std::move(parameters))}, options) {}

Lamb::Lamb(std::vector<torch::optim::OptimizerParamGroup> groups, const LambOptions& options)
    : Optimizer(std::move(groups), std::make_unique<LambOptions>(options)) {}

at::Tensor Lamb::step(LossClosure closure) {
  const at::Tensor loss = closure_loss(closure);
  const at::NoGradGuard no_grad;
  // Also without max_grad_norm: sparse gradients are refused here, on every rank.
  const double norm = norms_of(gradients_of(param_groups_)).all;
  const double most =
      static_cast<const LambOptions&>(param_groups_.at(0).options()).max_grad_norm();
  const double shrink = most > 0 && norm > most ? most / norm : 1;
  std::vector<Update> updates;
  std::vector<NormOf> asked;
  for (auto& group : param_groups_) {
    const auto& options = static_cast<const LambOptions&>(group.options());
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) {
        updates.push_back(
            {parameter,
             direction(parameter, options, lamb_state(state_, parameter), shrink),
             &options});
        asked.push_back({parameter, parameter.detach()});
        asked.push_back({parameter, updates.back().direction});
      }
    }
  }
  const std::vector<double> norms = norms_of(asked).each;
  for (std::size_t i = 0; i < updates.size(); ++i) {
    const LambOptions& options = *updates[i].options;
    const double weight = norms[2 * i];
    const double update = norms[2 * i + 1];
    const bool adapts = options.use_nvlamb() || options.weight_decay() != 0;
    const double ratio = adapts && weight > 0 && update > 0 ? weight / update : 1;
    updates[i].parameter.add_(updates[i].direction, -options.lr() * ratio);
  }
  return loss;
}

} // namespace tessera::optim
