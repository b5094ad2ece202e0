#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include "tessera/model/options.h"
#include "tessera/tensor/named_tensors.h"

namespace tessera {

namespace model {
class ModelCore;
struct Decision;
} // namespace model

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
  using Hook = std::function<void()>;

  /// Throws: ConfigError for bad options, or a module that shares something with another model.
  explicit Model(std::shared_ptr<torch::nn::Module> module, ModelOptions options = {});

  /// For a model that is called through its module's holder: throws what a call of a
  /// DistributedModel would. Not collective.
  /// Throws: UserError where the model cannot be called.
  void check_call() const;

  /// Backward of a loss, or of tensors with their gradients, through all ranks and every model that
  /// they came from. Gradients are divided by the number of microbatches (see ModelOptions, of the
  /// model that is called).
  void backward(const at::Tensor& loss, const at::Tensor& gradient = {}) const;
  void backward(
      const std::vector<at::Tensor>& tensors,
      const std::vector<at::Tensor>& gradients = {}) const;

  /// All parameters of the model, shared ones once; those of other ranks become empty handles with
  /// the partition, and optimizers pass over them. Not collective.
  std::vector<at::Tensor> parameters() const;
  /// As `parameters`, by name, a shared one under each of its names. Not collective.
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const;
  /// Those of other ranks become empty handles, too. Not collective.
  std::vector<at::Tensor> buffers() const;
  /// As `buffers`, by name. Not collective.
  torch::OrderedDict<std::string, at::Tensor> named_buffers() const;
  /// Not collective.
  void train(bool on = true) const;
  /// Not collective.
  void eval() const;
  /// Not collective.
  bool is_training() const;
  /// Sets the gradients of this rank's parameters to zero, as DistributedOptimizer::zero_grad does.
  /// Not collective.
  void zero_grad() const;
  /// Does nothing where the model is on `device` already. Not collective.
  /// Throws: UserError for another device.
  void to(at::Device device) const;

  /// Not collective.
  bool partitioned() const;
  /// What this rank owns, after the partition. Not collective.
  NamedTensors local_parameters() const;
  /// Not collective.
  NamedTensors local_buffers() const;
  /// Not collective.
  TensorMap local_state_dict() const;
  /// The whole model's tensors on the host, by name. Every rank must call it; with
  /// `gather_to_rank0` only pp rank 0 gets them, others an empty map.
  TensorMap state_dict(bool gather_to_rank0 = false) const;
  /// A whole state, of which each rank takes its part: now, or after the partition.
  /// Throws: CheckpointError listing every name that does not fit.
  void load_state_dict(TensorMap state, bool strict = true) const;

  /// The whole state into another model: `other = decay * other + (1 - decay) * this` for
  /// parameters, a copy for buffers. With decay 0 a copy (target networks), else an average of
  /// weights (EMA). `other` is an ordinary module of the same structure, as a holder or a
  /// shared_ptr, which gets all tensors on every rank; or another DistributedModel, where each rank
  /// copies its part if both have one partition. Now, or right after the partition.
  /// Throws: CheckpointError on every rank that lists all names and shapes that do not fit.
  template <typename Other>
  void copy_to(const Other& other, double decay = 0) const {
    if constexpr (std::is_base_of_v<Model, Other>) {
      copy_to_model(other, decay);
    } else if constexpr (requires { other.ptr(); }) {
      copy_to_module(other.ptr(), decay);
    } else {
      static_assert(
          std::is_convertible_v<const Other&, std::shared_ptr<torch::nn::Module>>,
          "copy_to takes a module's holder, a shared_ptr of a module, or a DistributedModel");
      copy_to_module(other, decay);
    }
  }

  /// Runs after the partition, before the first forward; at once when the model is partitioned
  /// already.
  void register_post_partition_hook(Hook hook) const;
  /// Runs after the first step.
  void register_post_step_hook(Hook hook) const;

  /// What the partition was decided from (tessera/model/decision.h), on rank 0 after the partition;
  /// else nullptr. Not collective.
  std::shared_ptr<const model::Decision> decision() const;

  /// The type that the keys fp16 and bf16 gave to the model. A DistributedModel casts what it is
  /// given and gives back; who calls through the module's holder casts himself. Not collective.
  std::optional<at::ScalarType> converted_to() const;

  /// For the library itself and its tests.
  const std::shared_ptr<model::ModelCore>& core() const {
    return core_;
  }

 private:
  void copy_to_model(const Model& other, double decay) const;
  void copy_to_module(std::shared_ptr<torch::nn::Module> other, double decay) const;

  std::shared_ptr<model::ModelCore> core_;
};

} // namespace tessera
