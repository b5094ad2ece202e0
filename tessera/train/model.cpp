#include "tessera/train/model.h"

#include "tessera/base/error.h"
#include "tessera/model/copy.h"
#include "tessera/model/decision.h"
#include "tessera/model/model_core.h"
#include "tessera/train/engine.h"
#include "tessera/train/session.h"

namespace tessera {

Model::Model(std::shared_ptr<torch::nn::Module> module, ModelOptions options)
    : core_(train::engine().make_model(std::move(module), std::move(options))) {}

void Model::check_call() const {
  train::engine().check_call(*core_);
}

void Model::backward(const at::Tensor& loss, const at::Tensor& gradient) const {
  backward(std::vector<at::Tensor>{loss}, std::vector<at::Tensor>{gradient});
}

void Model::backward(
    const std::vector<at::Tensor>& tensors,
    const std::vector<at::Tensor>& gradients) const {
  train::engine().backward(tensors, gradients, core_->gradient_scale());
}

std::vector<at::Tensor> Model::parameters() const {
  return core_->all_parameters();
}

torch::OrderedDict<std::string, at::Tensor> Model::named_parameters() const {
  return core_->root()->named_parameters();
}

std::vector<at::Tensor> Model::buffers() const {
  return core_->root()->buffers();
}

torch::OrderedDict<std::string, at::Tensor> Model::named_buffers() const {
  return core_->root()->named_buffers();
}

bool Model::is_training() const {
  return core_->root()->is_training();
}

void Model::zero_grad() const {
  core_->root()->zero_grad();
}

void Model::to(at::Device device) const {
  for (const auto& list : {parameters(), buffers()}) {
    for (const at::Tensor& tensor : list) {
      // Delayed tensors get their memory where they will live.
      if (tensor.defined() && !tensor.is_meta() && tensor.device() != device) {
        throw UserError(
            str("model.to(",
                device.str(),
                ") of the model '",
                core_->label(),
                "', which is on ",
                tensor.device().str(),
                "; call it on the module before it is given to DistributedModel"));
      }
    }
  }
}

void Model::train(bool on) const {
  core_->root()->train(on);
}

void Model::eval() const {
  core_->root()->eval();
}

std::optional<at::ScalarType> Model::converted_to() const {
  return core_->converted_to();
}

bool Model::partitioned() const {
  return core_->partitioned();
}

NamedTensors Model::local_parameters() const {
  return core_->local_parameters();
}

NamedTensors Model::local_buffers() const {
  return core_->local_buffers();
}

TensorMap Model::local_state_dict() const {
  return core_->local_state_dict();
}

TensorMap Model::state_dict(bool gather_to_rank0) const {
  return core_->state_dict(gather_to_rank0);
}

void Model::load_state_dict(TensorMap state, bool strict) const {
  core_->load_state_dict(std::move(state), strict);
}

void Model::copy_to_model(const Model& other, double decay) const {
  model::check_decay(decay);
  core_->on_partition([from = std::weak_ptr(core_), to = other.core(), decay] {
    to->on_partition(
        [from = from.lock(), to = to.get(), decay] { model::copy_into(*from, *to, decay); });
  });
}

void Model::copy_to_module(std::shared_ptr<torch::nn::Module> other, double decay) const {
  model::check_decay(decay);
  core_->on_partition(
      [from = core_.get(), to = std::move(other), decay] { model::copy_into(*from, *to, decay); });
}

void Model::register_post_partition_hook(Hook hook) const {
  core_->on_partition(std::move(hook));
}

void Model::register_post_step_hook(Hook hook) const {
  core_->on_first_step(std::move(hook));
}

std::shared_ptr<const model::Decision> Model::decision() const {
  return core_->decision();
}

} // namespace tessera
