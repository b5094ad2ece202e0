#include "tessera/train/distributed_optimizer.h"

#include <map>
#include <set>

#include "tessera/base/error.h"
#include "tessera/optim/clip.h"

namespace tessera {

DistributedOptimizer::DistributedOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer)
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
  const timeline::Span span(*train::session().recorder, "optimizer step", "optimizer");
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
  std::map<const void*, std::string> names;
  const auto model = train::session().model.lock();
  if (model != nullptr && model->partitioned()) {
    for (const auto& [name, tensor] : model->local_parameters()) {
      names.emplace(tensor.unsafeGetTensorImpl(), name);
    }
  }
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> counted;
  for (const at::Tensor& parameter : parameters_) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) {
      continue;
    }
    gradients.push_back(gradient);
    const auto name = names.find(parameter.unsafeGetTensorImpl());
    if (name == names.end()) {
      counted.push_back(gradient); // a parameter that is not the model's
      continue;
    }
    for (const at::Tensor& part : model->state_layout().counted_once(name->second, gradient)) {
      counted.push_back(part);
    }
  }
  return optim::clip_grad_norm(gradients, counted, max_norm, train::session().group(Group::kMP));
}

} // namespace tessera
