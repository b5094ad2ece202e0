#pragma once

#include <algorithm>
#include <cstdint>

#include "tessera/optim/distributed_optimizer.h"

namespace tessera::optim {

/// What checkpoints, the loss scaling of scripts and tests need of a DistributedOptimizer and a
/// script does not. Threads: step thread only.
struct OptimizerAccess {
  /// Leaves what other ranks own to them and makes the masters, once the models are partitioned.
  /// Harmless to repeat. Collective over the world with shard_optimizer_state.
  static void prepare(DistributedOptimizer& optimizer) {
    optimizer.prepare();
  }
  /// Returns how many parameters the optimizer was made with, and how often `step` was called
  /// since.
  static std::size_t given_parameters(const DistributedOptimizer& optimizer) {
    return optimizer.given_.size();
  }
  static std::int64_t updates(const DistributedOptimizer& optimizer) {
    return optimizer.updates_;
  }
  /// Returns the only live model that has parameters of the optimizer. Not collective.
  /// Throws: ConfigError for none, CheckpointError for several.
  static model::ModelCore& model(const DistributedOptimizer& optimizer) {
    return optimizer.model();
  }
  /// Returns whether the optimizer was made with any parameter of the model. Not collective.
  static bool has_parameters_of(const DistributedOptimizer& optimizer, const model::ModelCore& of) {
    const auto models = optimizer.models();
    return std::find(models.begin(), models.end(), &of) != models.end();
  }
  /// Returns what this rank keeps of a parameter, and with it the gradient that it keeps: its part
  /// with sharded data parallelism, else the parameter. Not collective.
  static at::Tensor own_part(const DistributedOptimizer& optimizer, const at::Tensor& parameter) {
    return optimizer.own_part(parameter);
  }
  /// Returns the tensor the optimizer updates for a parameter: its master or itself.
  static at::Tensor updated_tensor(
      const DistributedOptimizer& optimizer,
      const at::Tensor& parameter) {
    return optimizer.updated_tensor(parameter);
  }
  /// Returns this rank's parameters of the model by name, each as the tensor that the optimizer
  /// updates.
  static NamedTensors updated_tensors(const DistributedOptimizer& optimizer) {
    return optimizer.updated_tensors();
  }
  /// Returns what a checkpoint holds of this rank's parameters and of their state. With `whole`
  /// nothing is left out on ranks of rdp_rank 0. With shard_optimizer_state collective over the
  /// world.
  static auto content(DistributedOptimizer& optimizer, bool whole) {
    return optimizer.content(whole);
  }
  /// Sets the parameters to the values of their masters, after these were loaded.
  static void refresh_parameters(DistributedOptimizer& optimizer) {
    optimizer.refresh_parameters();
  }
  /// Divides the gradients that the next step uses by `scale`; returns whether one is not finite on
  /// any rank. Collective over the world. Throws: ConfigError with fp16.
  static bool unscale_gradients(DistributedOptimizer& optimizer, double scale) {
    return optimizer.unscale_gradients(scale);
  }
};

} // namespace tessera::optim
