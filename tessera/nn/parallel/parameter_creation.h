#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/parallel/distributed_module.h"
#include "tessera/nn/parallel/shard.h"
#include "tessera/tensor/torch_compat.h"

namespace tessera::nn {

/// Writes the first values of a full parameter.
using Initializer = std::function<void(at::Tensor& full)>;

/// The initialisation of the weight of torch::nn::Linear: uniform, bound 1 / sqrt(fan in).
Initializer linear_weight();
/// The initialisation of the bias of torch::nn::Linear. `fan_in`: the layer's number of inputs.
Initializer linear_bias(std::int64_t fan_in);
Initializer normal(double deviation);
Initializer constant(double value);

struct ParameterCreation {
  /// Whether the parameters meet the samples of the whole TP_GROUP
  /// (DistributedParameter::scaled_batch).
  bool scaled_batch = true;
  /// None: torch's default dtype.
  TorchOptional<at::ScalarType> dtype = {};
  /// normal(0, initializer_range) in place of torch's own initialisation.
  bool use_normal = false;
  double initializer_range = 0.02;
  /// Memory for a part that peers read where it lies; none: any. Delayed
  /// parameters take none of it.
  std::function<at::Tensor(at::IntArrayRef sizes, const at::TensorOptions& options)> allocate = {};
};

/// Creates the parameters of one distributed module:
///
///     const auto create = parameter_creation_scope(*this, {.use_normal = true});
///     weight_ = create.initialize_with_input_partition("weight", {out, in});
///
/// Every parameter is drawn whole from the default generator and then cut, so
/// ranks that are seeded alike hold the parts of what one process would hold.
///
/// Sizes are those of the full parameter. Every method registers the parameter
/// and returns it. Not collective. Threads: one at a time for a module.
/// Cost: memory of the full parameter while it is drawn.
/// Source: Karakus et al. 2021, appendix I.6. There a context manager catches
/// what is created inside; here the scope creates.
class ParameterCreationScope {
 public:
  ParameterCreationScope(DistributedModule& module, ParameterCreation how);

  /// Divided along the dimension that meets the module's input: the last.
  at::Tensor initialize_with_input_partition(
      const std::string& name,
      const std::vector<std::int64_t>& sizes,
      Initializer initializer = {}) const;
  /// Divided along the dimension of the module's output: the first.
  at::Tensor initialize_with_output_partition(
      const std::string& name,
      const std::vector<std::int64_t>& sizes,
      Initializer initializer = {}) const;
  /// Whole on every rank. It meets what its rank meets, so its gradient is
  /// averaged over the DP_GROUP whatever `scaled_batch` says.
  at::Tensor initialize_whole(
      const std::string& name,
      const std::vector<std::int64_t>& sizes,
      Initializer initializer = {}) const;
  /// Any part.
  at::Tensor initialize_shard(const std::string& name, Shard shard, Initializer initializer = {})
      const;
  /// Draws as the others do and keeps nothing: the parameter lives on other
  /// ranks, and the random streams of all ranks stay together.
  void skip(const std::vector<std::int64_t>& sizes, Initializer initializer = {}) const;

 private:
  at::Tensor drawn(const std::vector<std::int64_t>& sizes, const Initializer& initializer) const;

  DistributedModule& module_;
  ParameterCreation how_;
};

ParameterCreationScope parameter_creation_scope(
    DistributedModule& module,
    ParameterCreation how = {});

} // namespace tessera::nn
