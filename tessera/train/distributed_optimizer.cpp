#include "tessera/train/distributed_optimizer.h"

#include <set>

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
            "the optimizer was given a parameter twice; take the model's "
            "parameters(), which lists shared ones once");
      }
      parameters_.push_back(parameter);
    }
  }
}

void DistributedOptimizer::prepare() {
  const auto model = train::session().model.lock();
  if (prepared_ || model == nullptr || !model->partitioned()) {
    return;
  }
  std::set<const void*> elsewhere;
  for (const at::Tensor& parameter : model->all_parameters()) {
    elsewhere.insert(parameter.unsafeGetTensorImpl());
  }
  for (const auto& [name, tensor] : model->local_parameters()) {
    elsewhere.erase(tensor.unsafeGetTensorImpl());
  }
  const auto remote = [&](const at::Tensor& parameter) {
    return elsewhere.contains(parameter.unsafeGetTensorImpl());
  };
  std::erase_if(parameters_, remote);
  for (auto& group : optimizer_->param_groups()) {
    std::erase_if(group.params(), remote);
    for (at::Tensor& parameter : group.params()) {
      parameter = masters_.add(parameter);
    }
  }
  prepared_ = true;
}

void DistributedOptimizer::step() {
  prepare();
  masters_.take_gradients();
  optimizer_->step();
  masters_.write_back();
}

void DistributedOptimizer::zero_grad(bool set_to_none) {
  for (at::Tensor& parameter : parameters_) {
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

double DistributedOptimizer::clip_grad_norm(double max_norm) {
  prepare();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_) {
    if (parameter.grad().defined()) {
      gradients.push_back(parameter.grad());
    }
  }
  return optim::clip_grad_norm(
      gradients, max_norm, train::session().group(Group::kMP));
}

} // namespace tessera
