#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include "tessera/deferred_init/delayed_init.h"
#include "tessera/model/options.h"
#include "tessera/nn/parallel/marking.h"
#include "tessera/tensor/named_tensors.h"

namespace tessera {

namespace data_parallel {
struct GradientBucket;
}
namespace comm {
class Work;
}
namespace model {
class ModelCore;
struct Decision;
} // namespace model
namespace optim {
class DistributedOptimizer;
}
namespace train {
struct ModelAccess;
}

/// For calls that are divided by operations (the key partition_mode).
namespace detail {

/// Throws: ConfigError: the call has arguments that cannot be recorded.
[[noreturn]] void refuse_operations();
/// Throws: UserError when a forward has changed what it was given.
void check_unchanged(const c10::IValue& given, const c10::IValue& left);

} // namespace detail

/// Modules that are made in this scope are delayed (`delay_param_initialization`), of `dtype` where
/// they name none, and with `tensor_parallelism` marked with `options` (marking.h):
///
///     const tessera::model_creation scope(/*tensor_parallelism=*/true, torch::kBFloat16);
///     Net net;
///
/// Without `tensor_parallelism` the options are ignored.
/// Threads: the scope belongs to its thread. Not collective.
/// Source: the library's documentation, `model_creation`.
class ModelCreationScope {
 public:
  explicit ModelCreationScope(
      bool tensor_parallelism = false,
      std::optional<at::ScalarType> dtype = {},
      const nn::OptionValues& options = {});
  ~ModelCreationScope();
  ModelCreationScope(const ModelCreationScope&) = delete;
  ModelCreationScope& operator=(const ModelCreationScope&) = delete;

 private:
  tracer::DelayedInitScope delayed_;
  std::optional<nn::TensorParallelismScope> marked_;
  caffe2::TypeMeta previous_dtype_;
};
using model_creation = ModelCreationScope;

/// Puts a module and all that is inside it on pp rank `index`, as `tessera::partition` does with
/// what is made in its scope; the last word on a module counts. After `init`, before the first
/// step that calls the model, wrapped already or not. Every rank says the same. Not collective.
/// With partition_mode "operations" any module will do, and the operators that read its tensors go
/// along.
/// Throws: ConfigError with auto_partition true, for an index that is no pp rank, and, where
/// modules are assigned, for one that no holder of this library has; UserError where its model is
/// partitioned already.
/// Source: the library's documentation, `set_partition`.
void set_partition(const torch::nn::Module& module, int index);
/// Does the same with a holder: `set_partition(model->encoder, 1)`.
template <typename Holder>
requires requires(const Holder& holder) {
  holder.ptr();
}
void set_partition(const Holder& holder, int index) {
  set_partition(*holder.ptr(), index);
}

/// The key that tells a state dictionary's kind: true for a rank's part of one, false for a whole
/// one that needs no translation. Source: the library's documentation, `local_state_dict`.
inline constexpr const char* kPartialMarker = "_smp_is_partial";

/// A hook that a model keeps until it has run.
class HookHandle {
 public:
  /// Makes a handle of no hook.
  HookHandle() = default;
  explicit HookHandle(std::weak_ptr<std::function<void()>> hook) : hook_(std::move(hook)) {}
  /// Removes the hook; does nothing where it has run. Every rank calls it, as it registered the
  /// hook. Not collective.
  void remove() const {
    if (const auto hook = hook_.lock()) {
      *hook = nullptr;
    }
  }

 private:
  std::weak_ptr<std::function<void()>> hook_;
};

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
  using ModelHook = std::function<void(const Model& model, optim::DistributedOptimizer* optimizer)>;

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

  /// Returns all parameters of the model, shared ones once; those of other ranks become empty
  /// handles with the partition, and optimizers pass over them. Not collective.
  std::vector<at::Tensor> parameters() const;
  /// Returns the same as `parameters`, by name, a shared one under each of its names. Not
  /// collective.
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const;
  /// Returns all buffers; those of other ranks become empty handles, too. Not collective.
  std::vector<at::Tensor> buffers() const;
  /// Returns the same as `buffers`, by name. Not collective.
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
  /// Returns what this rank owns, after the partition. Not collective.
  NamedTensors local_parameters() const;
  /// Not collective.
  NamedTensors local_buffers() const;
  /// Returns this rank's parameters and buffers, with a tensor of true under `kPartialMarker` that
  /// tells `load_state_dict` what it is. Not collective.
  TensorMap local_state_dict() const;

  using NamedModules = std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>;
  /// Returns the modules that run on this rank, after the partition, each once under its first
  /// path; the model itself is "". Not collective. Throws: ConfigError before the partition, as all
  /// below.
  NamedModules local_named_modules() const;
  std::vector<std::shared_ptr<torch::nn::Module>> local_modules() const;
  /// Returns those of them that are spread over the TP_GROUP: in the place of marked modules or
  /// built as such, and the distributed modules inside them. Not collective.
  NamedModules distributed_modules() const;
  /// Returns whether each rank of the TP_GROUP has a part of its own of the tensor. A parameter
  /// that a distributed module has whole on every rank is none, nor is a tensor that is not this
  /// rank's. Not collective.
  bool is_distributed_parameter(const at::Tensor& parameter) const;
  /// Returns whether it belongs to a distributed module, of which each rank of the TP_GROUP has its
  /// own. Not collective.
  bool is_distributed_buffer(const at::Tensor& buffer) const;
  /// Returns whether the tensor meets the samples of the whole TP_GROUP, not this rank's alone: a
  /// parameter's gradient is then averaged over the RDP_GROUP. Not collective.
  bool is_scaled_batch_parameter(const at::Tensor& parameter) const;
  bool is_scaled_batch_buffer(const at::Tensor& buffer) const;
  /// Returns this rank's parameters whose gradients are averaged over the DP_GROUP, and those over
  /// the RDP_GROUP: together all of `local_parameters` but those that sharded data parallelism
  /// divides. Not collective.
  NamedTensors default_reducer_named_parameters() const;
  NamedTensors scaled_batch_reducer_named_parameters() const;
  /// Returns the module that runs: what the script gave, or the distributed module in its place.
  /// Not collective.
  const std::shared_ptr<torch::nn::Module>& get_module() const;
  /// Returns the whole model's tensors on the host, by name. Every rank must call it; with
  /// `gather_to_rank0` only pp rank 0 gets them, others an empty map.
  TensorMap state_dict(bool gather_to_rank0 = false) const;
  /// Takes effect at once; after the partition for a model of delayed initialisation and for a
  /// rank's part of a state that is given before it. `state` is, on every rank,
  ///   a whole state, of which each rank takes its part;
  ///   a whole state of a form that was registered for the model (state_translation.h, models of
  ///   this repository: as published), unless a tensor of false stands under `kPartialMarker`; or
  ///   the rank's part of a state (`local_state_dict`). Parts are joined over the PP_GROUP, so that
  ///   the partition may be another one; with `same_partition_load` each rank takes its own part as
  ///   it is, without joining them.
  /// Throws: CheckpointError on every rank, listing every name that does not fit, and where only
  /// some ranks give parts.
  void load_state_dict(TensorMap state, bool strict = true, bool same_partition_load = false) const;

  /// The whole state into another model: `other = decay * other + (1 - decay) * this` for
  /// parameters, a copy for buffers. With decay 0 a copy (target networks), else an average of
  /// weights (EMA). `other` is an ordinary module of the same structure, as a holder or a
  /// shared_ptr, which gets all tensors on every rank; or another DistributedModel, where each rank
  /// copies its part if both have one partition. At once; a model of delayed initialisation is
  /// copied right after its partition. Before the partition all ranks get the values of rank 0
  /// first. Collective over the world. Throws: CheckpointError on every rank that lists all names
  /// and shapes that do not fit.
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

  /// Makes the model an ordinary one again: the module that the script gave (`net()`) has all of
  /// its parameters and buffers, on every rank, on the host, and runs as in a plain script;
  /// gradients are undefined. What tensor parallelism had replaced is back in its place. From here
  /// on the model is no part of steps, and an optimizer that has updated it refuses to go on; to
  /// train further make a DistributedModel of the module and an optimizer anew. Between steps.
  /// Throws: ConfigError before the partition, and with distributed modules that the script has
  /// built itself; UserError inside of a step.
  /// Source: the library's documentation, `cpu`.
  void cpu() const;

  /// Runs after the partition, before the first forward; at once when the model is partitioned
  /// already. A hook takes no arguments, or this model and the optimizer: the DistributedOptimizer
  /// that was made last of those that have parameters of the model, nullptr where none was made
  /// yet.
  ///
  ///     model.register_post_partition_hook(
  ///         [](const tessera::Model& model, tessera::optim::DistributedOptimizer* optimizer) {
  ///           ...
  ///         });
  ///
  /// Source: the library's documentation, `register_post_partition_hook`.
  HookHandle register_post_partition_hook(Hook hook) const;
  HookHandle register_post_partition_hook(ModelHook hook) const;
  /// Runs after the first step, with the same arguments.
  HookHandle register_post_step_hook(Hook hook) const;
  HookHandle register_post_step_hook(ModelHook hook) const;

  using CommHook =
      std::function<std::shared_ptr<comm::Work>(data_parallel::GradientBucket& bucket)>;
  /// From the next step on `hook` averages gradients in the place of the library: it is given each
  /// bucket (tessera/data_parallel/comm_hook.h) of this rank's gradients, which are averages over
  /// microbatches already, and leaves in it their sum over `bucket.group` times `bucket.scale`:
  ///
  ///     model.register_comm_hook([](tessera::data_parallel::GradientBucket& bucket) {
  ///       return bucket.group.scaled_sum_async(bucket.buffer, bucket.scale); // as without it
  ///     });
  ///
  /// It is called on every rank of the group for the same buckets in one order; an empty one gives
  /// the library its work back. Sparse gradients, and gradients that a backward outside of a step
  /// adds, are averaged by the library. What it throws is an error of the step on all ranks.
  /// Where there is one replica nothing is averaged. Between steps; not collective, but alike on
  /// all ranks.
  /// Throws: ConfigError without "ddp": true, with overlapping_allreduce false, and with sharded
  /// state or parameters.
  /// Source: the library's documentation, `register_comm_hook`.
  void register_comm_hook(CommHook hook) const;

  /// Returns what the partition was decided from (tessera/model/decision.h), on rank 0 after the
  /// partition; else nullptr. Not collective.
  std::shared_ptr<const model::Decision> decision() const;

  /// Returns the type that the keys fp16 and bf16 gave to the model. A DistributedModel casts what
  /// it is given and gives back; who calls through the module's holder casts himself. Not
  /// collective.
  std::optional<at::ScalarType> converted_to() const;

 protected:
  using PackedForward = std::function<c10::IValue(const c10::IValue&)>;
  /// Returns whether calls are divided by operations (the key partition_mode). Not collective.
  bool by_operations() const;
  /// Such a call: packed arguments, and the script's own forward of them. Not collective.
  c10::IValue call_by_operations(const c10::IValue& arguments, const PackedForward& forward) const;

 private:
  friend struct train::ModelAccess;
  using Translate = std::function<TensorMap(const TensorMap& state, bool strict)>;
  Model(std::shared_ptr<model::ModelCore> core, Translate translate)
      : translate_(std::move(translate)), core_(std::move(core)) {}
  Hook with_arguments(ModelHook hook) const;
  void copy_to_model(const Model& other, double decay) const;
  void copy_to_module(std::shared_ptr<torch::nn::Module> other, double decay) const;

  /// The translation of states of the model as the script built it; empty where no form is
  /// registered for it.
  Translate translate_;
  std::shared_ptr<model::ModelCore> core_;
};

} // namespace tessera
