// DistributedOptimizer's part of 16 bits: gradients of masters, loss scale, overflow.
#include "tessera/base/error.h"
#include "tessera/context/context.h"
#include "tessera/model/model_core.h"
#include "tessera/model/model_set.h"
#include "tessera/optim/distributed_optimizer.h"
#include "tessera/optim/lbfgs.h"
#include "tessera/optim/loss_scaling.h"
#include "tessera/optim/master_weights.h"

namespace tessera::optim {

void DistributedOptimizer::begin_loss_scaling(const LossScaleOptions& options) {
  if (!context().config.fp16) {
    if (options != LossScaleOptions{}) {
      throw ConfigError(
          "DistributedOptimizer was given a loss scale, but the key fp16 is false; write \"fp16\": "
          "true, or leave static_loss_scale, dynamic_loss_scale and dynamic_loss_args out");
    }
    return;
  }
  if (dynamic_cast<const LBFGS*>(optimizer_.get()) != nullptr) {
    throw ConfigError(
        "LBFGS does not work with fp16: a step of its line search cannot be left out when "
        "gradients overflow; write \"bf16\": true in place of fp16, or take another optimizer");
  }
  scaling_ = std::make_unique<LossScaling>(options);
  model_set().use_loss_scale(scaling_->shared());
}

// Nobody would divide its gradients by the scale.
void DistributedOptimizer::check_has_master(const at::Tensor& parameter, const at::Tensor& master)
    const {
  if (scaling_ != nullptr && master.is_same(parameter)) {
    throw ConfigError(tessera::str(
        "the optimizer has a parameter of shape ",
        parameter.sizes(),
        " and type ",
        parameter.scalar_type(),
        " that is no DistributedModel's, so with fp16 nobody divides its gradients by the loss "
        "scale; register it in the model, or give it to an optimizer of its own"));
  }
}

// Who made a loss with another scale would be divided by this one.
void DistributedOptimizer::check_scale_in_force() const {
  const auto in_force = model_set().loss_scale();
  if (in_force == scaling_->shared() ||
      (!scaling_->scaler().dynamic() && in_force != nullptr && *in_force == scaling_->scale())) {
    return;
  }
  throw ConfigError(
      "with fp16 losses are multiplied by the scale of the DistributedOptimizer that was made "
      "last, and this is another one; make one DistributedOptimizer with the parameters of all "
      "models, or give all of them the same static_loss_scale");
}

/// False where gradients overflow on some rank. The replicas agree already; the whole world is
/// asked, so that it needs not be known here who holds what. After true parameters may be written.
bool DistributedOptimizer::take_gradients() {
  average_gradients();
  masters_->take_gradients(loss_scale());
  if (scaling_ != nullptr) {
    check_scale_in_force();
    if (any_overflow(stepped_gradients(), context().group(Group::kWorld))) {
      return false;
    }
  }
  if (has_shards()) {
    global_grad_norm_ = clip_shards(context().config.sdp_gradient_clipping);
    for (const model::ModelCore* model : models_) {
      if (model->shards() != nullptr) {
        model->shards()->before_update(); // behind the sum of the norm
      }
    }
  }
  return true;
}

std::vector<at::Tensor> DistributedOptimizer::stepped_gradients() const {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_) {
    const at::Tensor gradient = updated_tensor(parameter).grad();
    if (gradient.defined()) {
      gradients.push_back(gradient);
    }
  }
  return gradients;
}

void DistributedOptimizer::end_scaled_step(bool overflow) {
  if (scaling_ == nullptr) {
    return;
  }
  scaling_->update(overflow, context().world->rank() == 0);
  if (overflow) {
    zero_grad(/*set_to_none=*/true);
  }
}

bool DistributedOptimizer::overflow() const {
  return scaling_ != nullptr && scaling_->overflow();
}

double DistributedOptimizer::loss_scale() const {
  return scaling_ != nullptr ? scaling_->scale() : 1;
}

std::string DistributedOptimizer::fp16_states() const {
  return scaling_ != nullptr ? scaling_->scaler().to_json() : "";
}

void DistributedOptimizer::load_fp16_states(const std::string& states, const std::string& origin) {
  if (scaling_ != nullptr) {
    scaling_->scaler().set_state(states, origin);
  }
}

double DistributedOptimizer::clip_grad_norm(double max_norm) {
  return clip(max_norm, /*only_stepped=*/scaling_ != nullptr);
}

double DistributedOptimizer::clip_master_grads(double max_norm) {
  return clip(max_norm, /*only_stepped=*/true);
}

bool DistributedOptimizer::unscale_gradients(double scale) {
  if (scaling_ != nullptr) {
    throw ConfigError(
        "amp::GradScaler was given an optimizer that scales losses itself, because of the key "
        "fp16; leave the GradScaler out");
  }
  const at::NoGradGuard no_grad;
  prepare();
  average_gradients();
  masters_->take_gradients();
  const std::vector<at::Tensor> gradients = stepped_gradients();
  for (const at::Tensor& gradient : gradients) {
    (gradient.is_sparse() ? gradient._values() : gradient).div_(scale);
  }
  masters_->keep_gradients();
  return any_overflow(gradients, context().group(Group::kWorld));
}

} // namespace tessera::optim
