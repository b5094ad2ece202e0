#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/nn/module.h"
#include "tessera/train/model_core.h"

namespace tessera {

namespace detail {

/// What a script may give to DistributedModel, and how each is held and called.
template <typename Net>
concept ModuleHolderType = requires(const Net& net) {
  typename Net::ContainedType;
  net.ptr();
};
template <typename Net>
concept ModuleClass = std::is_base_of_v<torch::nn::Module, Net>;

/// A call of the root goes through the interceptor of the thread once, whatever class it is of.
template <typename Impl, typename... Args>
auto call_root(Impl& root, Args&&... args) {
  if constexpr (requires { typename Impl::DispatchesItself; }) {
    return root.forward(std::forward<Args>(args)...);
  } else {
    return ModuleCall<Impl, Args...>::dispatch(root, std::forward<Args>(args)...);
  }
}

template <typename Net>
struct RootOf {
  static_assert(
      ModuleClass<Net>,
      "DistributedModel takes a module holder (of TESSERA_MODULE, TORCH_MODULE or "
      "torch::nn::Sequential), a std::shared_ptr to a class derived from torch::nn::Module, or an "
      "object of such a class");
  using Kept = std::shared_ptr<Net>;
  static Kept keep(Net net) {
    return std::make_shared<Net>(std::move(net));
  }
  static const Kept& pointer(const Kept& net) {
    return net;
  }
};
template <ModuleHolderType Net>
struct RootOf<Net> {
  using Kept = Net;
  static Kept keep(Net net) {
    return net;
  }
  static const auto& pointer(const Kept& net) {
    return net.ptr();
  }
};
template <ModuleClass Net>
struct RootOf<std::shared_ptr<Net>> {
  using Kept = std::shared_ptr<Net>;
  static Kept keep(Kept net) {
    if (net == nullptr) {
      throw ConfigError("DistributedModel was given a null pointer in place of a module");
    }
    return net;
  }
  static const Kept& pointer(const Kept& net) {
    return net;
  }
};

} // namespace detail

/// A user's model, spread over ranks: a holder (of TESSERA_MODULE, TORCH_MODULE or
/// torch::nn::Sequential), a std::shared_ptr to a module, or a module object, which is moved in.
/// Its parameters move to their ranks in the first step (at construction when
/// pipeline_parallel_degree is 1); call it and `backward` inside a step.
///
/// Methods are collective over the world unless they say otherwise.
/// Threads: step thread only; call and backward from the step function.
/// Source: the library's documentation, `DistributedModel`.
template <typename Net>
class DistributedModel {
  using Root = detail::RootOf<Net>;

 public:
  using Hook = train::ModelCore::Hook;

  explicit DistributedModel(Net net, ModelOptions options = {})
      : net_(std::move(net)), core_(std::make_shared<train::ModelCore>(net_.ptr(), options)) {}

  /// The model's forward. Inside a step (or tracing) only, unless the whole
  /// model is on this rank.
  template <typename... Args>
  auto operator()(Args&&... args) const {
    core_->check_call();
    if constexpr (requires { typename Net::ImplType; }) {
      return net_(std::forward<Args>(args)...); // a holder of ours knows default arguments
    } else {
      return detail::call_root(*Root::pointer(net_), std::forward<Args>(args)...);
    }
  }
  template <typename... Args>
  auto forward(Args&&... args) const {
    return (*this)(std::forward<Args>(args)...);
  }
  /// A script that has `model->forward(x)`, `model->train()` or `model->parameters()` keeps it.
  const DistributedModel* operator->() const {
    return this;
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

  /// Runs after the partition, before the first forward; at once when the model
  /// is partitioned already.
  void register_post_partition_hook(Hook hook) const {
    core_->on_partition(std::move(hook));
  }
  /// Runs after the first step.
  void register_post_step_hook(Hook hook) const {
    core_->on_first_step(std::move(hook));
  }

  /// What the script gave; a module object is in a std::shared_ptr now.
  auto& net() {
    return net_;
  }
  const std::shared_ptr<train::ModelCore>& core() const {
    return core_;
  }

 private:
  typename Root::Kept net_;
  std::shared_ptr<train::ModelCore> core_;
};

/// `auto model = tessera::distributed(Net(k));`: DistributedModel model(Net(k)) declares a
/// function.
template <typename Net>
DistributedModel<Net> distributed(Net net, ModelOptions options = {}) {
  return DistributedModel<Net>(std::move(net), options);
}

} // namespace tessera
