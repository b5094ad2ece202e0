#include "tessera/train/distributed_optimizer.h"

#include <algorithm>
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
  given_ = parameters_;
}

std::vector<train::ModelCore*> DistributedOptimizer::models() const {
  std::set<const void*> mine;
  for (const at::Tensor& parameter : given_) {
    mine.insert(parameter.unsafeGetTensorImpl());
  }
  std::vector<train::ModelCore*> list;
  for (train::ModelCore* model : train::session().engine->models()) {
    const auto parameters = model->all_parameters();
    if (std::any_of(parameters.begin(), parameters.end(), [&](const at::Tensor& parameter) {
          return mine.contains(parameter.unsafeGetTensorImpl());
        })) {
      list.push_back(model);
    }
  }
  return list;
}

train::ModelCore& DistributedOptimizer::model() const {
  const auto list = models();
  if (list.empty()) {
    throw ConfigError(
        "an optimizer's state goes by the model's parameter names, and this optimizer has no "
        "parameter of a live DistributedModel; make the DistributedModel first and give the "
        "optimizer its parameters()");
  }
  if (list.size() > 1) {
    std::string names;
    for (const train::ModelCore* model : list) {
      names += (names.empty() ? "'" : ", '") + model->label() + "'";
    }
    throw CheckpointError(tessera::str(
        "this optimizer has parameters of the models ",
        names,
        ", whose names may be the same; make one optimizer for each model to save or load its "
        "state"));
  }
  return *list.front();
}

void DistributedOptimizer::prepare() {
  const train::StepEngine& engine = *train::session().engine;
  if (prepared_ == engine.revision()) {
    return;
  }
  std::set<const void*> elsewhere;
  std::set<const void*> undecided; // of models that are whole everywhere yet
  bool any = false;
  for (const train::ModelCore* model : engine.models()) {
    any = any || model->partitioned();
    for (const at::Tensor& parameter : model->all_parameters()) {
      (model->partitioned() ? elsewhere : undecided).insert(parameter.unsafeGetTensorImpl());
    }
    if (model->partitioned()) {
      for (const auto& [name, tensor] : model->local_parameters()) {
        elsewhere.erase(tensor.unsafeGetTensorImpl());
      }
    }
  }
  if (!any) {
    return;
  }
  const auto remote = [&](const at::Tensor& parameter) {
    return elsewhere.contains(parameter.unsafeGetTensorImpl());
  };
  std::erase_if(parameters_, remote);
  for (auto& group : optimizer_->param_groups()) {
    std::erase_if(group.params(), remote);
    for (at::Tensor& parameter : group.params()) {
      if (!undecided.contains(parameter.unsafeGetTensorImpl())) {
        parameter = masters_.add(parameter);
      }
    }
  }
  prepared_ = engine.revision();
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
  std::map<const void*, std::pair<const train::ModelCore*, std::string>> owners;
  for (const train::ModelCore* model : models()) {
    if (model->partitioned()) {
      for (const auto& [name, tensor] : model->local_parameters()) {
        owners.emplace(tensor.unsafeGetTensorImpl(), std::make_pair(model, name));
      }
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
    const auto owner = owners.find(parameter.unsafeGetTensorImpl());
    if (owner == owners.end()) {
      counted.push_back(gradient); // a parameter of no model
      continue;
    }
    const auto& [model, name] = owner->second;
    for (const at::Tensor& part : model->state_layout().counted_once(name, gradient)) {
      counted.push_back(part);
    }
  }
  return optim::clip_grad_norm(gradients, counted, max_norm, train::session().group(Group::kMP));
}

} // namespace tessera
