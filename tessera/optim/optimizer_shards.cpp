// DistributedOptimizer's part of sharded data parallelism: updates of parts.
#include <exception>
#include <typeinfo>
#include <utility>

#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/context/agreement.h"
#include "tessera/context/context.h"
#include "tessera/model/model_core.h"
#include "tessera/optim/adamw_8bit.h"
#include "tessera/optim/distributed_optimizer.h"
#include "tessera/optim/failed_update.h"
#include "tessera/optim/fused.h"
#include "tessera/optim/lbfgs.h"
#include "tessera/optim/whole_norms.h"

namespace tessera::optim {

namespace {

/// Whether it is told what it needs of parameters that other ranks hold.
bool knows_parts(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const NeedsNorms*>(&optimizer) != nullptr ||
         dynamic_cast<const LBFGS*>(&optimizer) != nullptr; // refused where they are divided
}

/// Whether an element's update needs that element alone. A class that a script derives from one of
/// these may have an update of its own.
bool updates_by_element(const torch::optim::Optimizer& optimizer) {
  const std::type_info& type = typeid(optimizer);
  return type == typeid(torch::optim::SGD) || type == typeid(torch::optim::Adam) ||
         type == typeid(torch::optim::AdamW) || type == typeid(torch::optim::RMSprop) ||
         type == typeid(torch::optim::Adagrad) || type == typeid(AdamW8bit) ||
         type == typeid(FusedAdam);
}

} // namespace

/// The barrier that ends every update is reached by a rank whose update has failed, too: its parts
/// are parts of the others' parameters.
at::Tensor DistributedOptimizer::update_shards(const std::function<at::Tensor()>& update) {
  at::Tensor loss;
  std::exception_ptr error;
  try {
    loss = update();
  } catch (...) {
    error = std::current_exception();
  }
  if (has_shards()) { // also those of models that `update` has partitioned
    const Context& context = this->context();
    for (const model::ModelCore* model : models_) {
      if (model->shards() != nullptr) {
        model->shards()->after_writing();
      }
    }
    const auto problem =
        first_problem(*context.world, *context.control, failure_text(context, error));
    if (error == nullptr && problem) {
      throw UserError(tessera::str(
          "the optimizer's update failed on a rank that keeps parts of this rank's parameters: ",
          *problem));
    }
    warn_of_parts();
  }
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
  return loss;
}

void DistributedOptimizer::warn_of_parts() {
  if (std::exchange(warned_of_parts_, true) || updates_by_element(*optimizer_) ||
      knows_parts(*optimizer_) || context().world->rank() != 0) {
    return;
  }
  const torch::optim::Optimizer& optimizer = *optimizer_;
  log::warning(tessera::str(
      "the optimizer ",
      c10::demangle(typeid(optimizer).name()),
      " is given the parts of parameters that each rank keeps, one row of elements each "
      "(sharded_data_parallel_degree). That is right where every element's update depends on that "
      "element alone. An optimizer that needs a parameter's norm, mean or shape (LARS, "
      "Adafactor) trains other numbers; write shard_optimizer_state in place of "
      "sharded_data_parallel_degree, which gives it whole parameters"));
}

/// A class of the script's own may keep tensors by their place in the list that it was made with,
/// or decide by all parameters; nobody can see that from outside.
void DistributedOptimizer::warn_of_own_class() {
  const torch::optim::Optimizer& optimizer = *optimizer_;
  if (std::exchange(warned_of_own_class_, true) || updates_by_element(optimizer) ||
      knows_parts(optimizer) || dynamic_cast<const UpdatesByParameter*>(&optimizer) != nullptr ||
      context().world->rank() != 0) {
    return;
  }
  std::size_t here = 0;
  for (const auto& group : optimizer.param_groups()) {
    here += group.params().size();
  }
  log::warning(tessera::str(
      "the optimizer ",
      c10::demangle(typeid(optimizer).name()),
      " updates what this rank holds alone, ",
      here,
      " of the ",
      given_.size(),
      " parameters that it was given. That is right where a parameter's update depends on that "
      "parameter alone and its state is found by the parameter, as state() of torch's optimizers "
      "is. One that keeps tensors in the order of the list since its constructor, or decides by a "
      "norm or mean of all parameters, trains other numbers: keep state in state(), derive it from "
      "tessera::optim::NeedsNorms for norms, and from tessera::optim::UpdatesByParameter to say "
      "that it is right (tessera/optim/whole_norms.h)"));
}

} // namespace tessera::optim
