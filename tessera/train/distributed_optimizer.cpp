#include "tessera/train/distributed_optimizer.h"

#include "tessera/base/error.h"
#include "tessera/optim/clip.h"

namespace tessera {

DistributedOptimizer::DistributedOptimizer(
    std::unique_ptr<torch::optim::Optimizer> optimizer)
    : optimizer_(std::move(optimizer)) {
  std::set<const void*> seen;
  for (const auto& group : optimizer_->param_groups()) {
    for (const auto& parameter : group.params()) {
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) {
        throw ConfigError(
            "the optimizer was given a parameter twice; pass each shared "
            "parameter once");
      }
    }
  }
}

void DistributedOptimizer::step() {
  optimizer_->step();
}

void DistributedOptimizer::zero_grad(bool set_to_none) {
  for (auto& group : optimizer_->param_groups()) {
    for (auto& parameter : group.params()) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) {
        continue;
      }
      if (set_to_none) {
        gradient = at::Tensor();
      } else {
        gradient = gradient.detach().zero_();
      }
    }
  }
}

double DistributedOptimizer::clip_grad_norm(double max_norm) {
  std::vector<at::Tensor> gradients;
  for (const auto& group : optimizer_->param_groups()) {
    for (const auto& parameter : group.params()) {
      if (parameter.grad().defined()) {
        gradients.push_back(parameter.grad());
      }
    }
  }
  return optim::clip_grad_norm(
      gradients, max_norm, train::session().group(Group::kMP));
}

} // namespace tessera
