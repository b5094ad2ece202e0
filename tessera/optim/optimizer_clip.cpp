// DistributedOptimizer's part of clipping, and of what a rank keeps of a parameter.
#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/context/context.h"
#include "tessera/model/model_core.h"
#include "tessera/model/model_set.h"
#include "tessera/optim/clip.h"
#include "tessera/optim/distributed_optimizer.h"
#include "tessera/optim/loss_scaling.h"
#include "tessera/optim/master_weights.h"
#include "tessera/optim/state_sharing.h"

namespace tessera::optim {

using model::ModelCore;

bool DistributedOptimizer::has_shards() const {
  return std::any_of(models_.begin(), models_.end(), [](const ModelCore* model) {
    return model->shards() != nullptr;
  });
}

/// A divided parameter's part; other tensors themselves.
at::Tensor DistributedOptimizer::own_part(const at::Tensor& parameter) const {
  for (const ModelCore* model : model_set().models()) {
    if (model->shards() != nullptr) {
      const at::Tensor part = model->shards()->updated_part(parameter);
      if (!part.is_same(parameter)) {
        return part;
      }
    }
  }
  return parameter;
}

double DistributedOptimizer::clip_shards(double max_norm) {
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> counted;
  for (const at::Tensor& parameter : parameters_) {
    const at::Tensor part = own_part(parameter);
    if (!part.grad().defined()) {
      continue;
    }
    const at::Tensor master = masters_->of(part); // the optimizer steps on this one
    gradients.push_back(master.grad());
    if (!master.is_same(part) && scaling_ == nullptr) {
      gradients.push_back(part.grad());
    }
    for (const at::Tensor& piece : counted_in_world(parameter, master.grad())) {
      counted.push_back(piece);
    }
  }
  return optim::clip_grad_norm(gradients, counted, max_norm, context().group(Group::kWorld));
}

std::vector<at::Tensor> DistributedOptimizer::counted_once(
    const at::Tensor& parameter,
    const at::Tensor& tensor) const {
  const auto owner = owners_.find(parameter.unsafeGetTensorImpl());
  if (const auto whole = sharing_->counts_whole(context(), models_, parameter)) {
    return *whole ? std::vector<at::Tensor>{tensor} : std::vector<at::Tensor>();
  }
  if (owner == owners_.end()) {
    return {tensor}; // a parameter of no model
  }
  return owner->second.model->state_layout().counted_once(owner->second.name, tensor);
}

double DistributedOptimizer::clip(double max_norm, bool only_stepped) {
  prepare();
  if (has_shards()) {
    if (std::isinf(max_norm) && max_norm > 0) {
      average_gradients();
      masters_->take_gradients(loss_scale());
      return clip_shards(max_norm);
    }
    throw ConfigError(tessera::str(
        "clip_grad_norm was called, but with sharded_data_parallel_degree greater than 1 "
        "optimizer.step() clips gradients to sdp_gradient_clipping, ",
        context().config.sdp_gradient_clipping,
        "; leave the call out, and read the norm from global_grad_norm() after the step"));
  }
  average_gradients();
  masters_->take_gradients(loss_scale());
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> counted;
  for (const at::Tensor& parameter : parameters_) {
    if (!parameter.grad().defined()) {
      continue;
    }
    const at::Tensor master = masters_->of(parameter); // the optimizer steps on this one
    gradients.push_back(master.grad());
    if (!only_stepped && !master.is_same(parameter)) {
      gradients.push_back(parameter.grad());
    }
    for (const at::Tensor& part : counted_once(parameter, master.grad())) {
      counted.push_back(part);
    }
  }
  const Group all = sharing_->in_use(models_) ? Group::kWorld : Group::kMP;
  const double norm = optim::clip_grad_norm(gradients, counted, max_norm, context().group(all));
  masters_->keep_gradients();
  return norm;
}

} // namespace tessera::optim
