#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/nn/module.h"
#include "tessera/train/model_copy.h"
#include "tessera/train/model_core.h"

namespace tessera {

/// A user's model, spread over ranks. `Net` is a holder made by TESSERA_MODULE.
/// Its parameters move to their ranks in the first step (at construction when
/// pipeline_parallel_degree is 1); call it and `backward` inside a step.
///
/// Methods are collective over the world unless they say otherwise.
/// Threads: step thread only; call and backward from the step function.
/// Source: the library's documentation, `DistributedModel`.
template <typename Net>
class DistributedModel {
 public:
  using Hook = train::ModelCore::Hook;

  explicit DistributedModel(Net net, ModelOptions options = {})
      : net_(std::move(net)), core_(std::make_shared<train::ModelCore>(net_.ptr(), options)) {}

  /// The model's forward. Inside a step (or tracing) only, unless the whole
  /// model is on this rank.
  template <typename... Args>
  auto operator()(Args&&... args) const {
    core_->check_call();
    return net_(std::forward<Args>(args)...);
  }

  /// Backward of a loss, or of tensors with their gradients, through all ranks.
  /// Gradients are divided by the number of microbatches (see ModelOptions).
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

  Net& net() {
    return net_;
  }
  const std::shared_ptr<train::ModelCore>& core() const {
    return core_;
  }

 private:
  Net net_;
  std::shared_ptr<train::ModelCore> core_;
};

} // namespace tessera
