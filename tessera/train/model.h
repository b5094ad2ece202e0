#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tessera/train/model_copy.h"
#include "tessera/train/model_core.h"

namespace tessera {

/// A user's model, spread over ranks: any module, also one whose class is known
/// at run time only. Its parameters move to their ranks in the first step that
/// calls it (at construction when pipeline_parallel_degree is 1). Inside a step
/// call the module through its own holder, and `backward`.
///
/// A process may have several, also in one step; they share no parameter and no
/// module. All ranks make and destroy them in the same order, outside of steps.
///
/// Methods are collective over the world unless they say otherwise.
/// Threads: step thread only; check_call and backward from the step function.
class Model {
 public:
  using Hook = train::ModelCore::Hook;

  /// Throws: ConfigError for bad options, or a module that shares something with
  /// another model.
  explicit Model(std::shared_ptr<torch::nn::Module> module, ModelOptions options = {})
      : core_(std::make_shared<train::ModelCore>(std::move(module), std::move(options))) {}

  /// For a model that is called through its module's holder: throws what a call
  /// of a DistributedModel would. Not collective.
  /// Throws: UserError where the model cannot be called.
  void check_call() const {
    core_->check_call();
  }

  /// Backward of a loss, or of tensors with their gradients, through all ranks
  /// and every model that they came from. Gradients are divided by the number of
  /// microbatches (see ModelOptions, of the model that is called).
  void backward(const at::Tensor& loss, const at::Tensor& gradient = {}) const {
    core_->backward({loss}, {gradient});
  }
  void backward(
      const std::vector<at::Tensor>& tensors,
      const std::vector<at::Tensor>& gradients = {}) const {
    core_->backward(tensors, gradients);
  }

  /// All parameters of the model, shared ones once; those of other ranks become
  /// empty handles with the partition, and optimizers pass over them.
  /// Not collective.
  std::vector<at::Tensor> parameters() const {
    return core_->all_parameters();
  }
  /// Not collective.
  void train(bool on = true) const {
    core_->root()->train(on);
  }
  /// Not collective.
  void eval() const {
    core_->root()->eval();
  }

  bool partitioned() const {
    return core_->partitioned();
  }
  /// What this rank owns, after the partition. Not collective.
  NamedTensors local_parameters() const {
    return core_->local_parameters();
  }
  /// Not collective.
  NamedTensors local_buffers() const {
    return core_->local_buffers();
  }
  /// Not collective.
  TensorMap local_state_dict() const {
    return core_->local_state_dict();
  }
  /// The whole model's tensors on the host, by name. Every rank must call it;
  /// with `gather_to_rank0` only pp rank 0 gets them, others an empty map.
  TensorMap state_dict(bool gather_to_rank0 = false) const {
    return core_->state_dict(gather_to_rank0);
  }
  /// A whole state, of which each rank takes its part: now, or after the
  /// partition. Throws: CheckpointError listing every name that does not fit.
  void load_state_dict(TensorMap state, bool strict = true) const {
    core_->load_state_dict(std::move(state), strict);
  }

  /// The whole state into another model: `other = decay * other + (1 - decay) * this` for
  /// parameters, a copy for buffers. With decay 0 a copy (target networks), else an average of
  /// weights (EMA). `other` is an ordinary module of the same structure, as a holder or a
  /// shared_ptr, which gets all tensors on every rank; or another DistributedModel, where each rank
  /// copies its part if both have one partition. Now, or right after the partition.
  /// Throws: CheckpointError on every rank that lists all names and shapes that do not fit.
  template <typename Other>
  void copy_to(const Other& other, double decay = 0) const {
    train::check_decay(decay);
    if constexpr (requires { other.core(); }) {
      core_->on_partition([from = std::weak_ptr(core_), to = other.core(), decay] {
        to->on_partition(
            [from = from.lock(), to = to.get(), decay] { train::copy_into(*from, *to, decay); });
      });
    } else {
      core_->on_partition([from = core_.get(), to = train::module_of(other), decay] {
        train::copy_into(*from, *to, decay);
      });
    }
  }

  /// Runs after the partition, before the first forward; at once when the model
  /// is partitioned already.
  void register_post_partition_hook(Hook hook) const {
    core_->on_partition(std::move(hook));
  }
  /// Runs after the first step.
  void register_post_step_hook(Hook hook) const {
    core_->on_first_step(std::move(hook));
  }

  const std::shared_ptr<train::ModelCore>& core() const {
    return core_;
  }

 private:
  std::shared_ptr<train::ModelCore> core_;
};

} // namespace tessera
