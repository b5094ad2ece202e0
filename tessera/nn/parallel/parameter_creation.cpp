#include "tessera/nn/parallel/parameter_creation.h"

#include <cmath>
#include <utility>

#include <ATen/ATen.h>
#include <torch/nn/init.h>

namespace tessera::nn {

Initializer linear_weight() {
  return [](at::Tensor& full) { torch::nn::init::kaiming_uniform_(full, std::sqrt(5.0)); };
}

Initializer linear_bias(std::int64_t fan_in) {
  return [fan_in](at::Tensor& full) {
    const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
    full.uniform_(-bound, bound);
  };
}

Initializer normal(double deviation) {
  return [deviation](at::Tensor& full) { full.normal_(0, deviation); };
}

Initializer constant(double value) {
  return [value](at::Tensor& full) { full.fill_(value); };
}

ParameterCreationScope::ParameterCreationScope(DistributedModule& module, ParameterCreation how)
    : module_(module), how_(std::move(how)) {}

at::Tensor ParameterCreationScope::drawn(
    const std::vector<std::int64_t>& sizes,
    const Initializer& initializer) const {
  const at::NoGradGuard no_grad;
  at::TensorOptions options;
  if (how_.dtype) {
    options = options.dtype(*how_.dtype);
  }
  at::Tensor full = at::empty(sizes, options);
  if (initializer) {
    initializer(full);
  } else if (how_.use_normal) {
    normal(how_.initializer_range)(full);
  } else if (sizes.size() >= 2) {
    linear_weight()(full);
  } else {
    constant(0)(full);
  }
  return full;
}

at::Tensor ParameterCreationScope::initialize_shard(
    const std::string& name,
    Shard shard,
    Initializer initializer) const {
  const at::Tensor full = drawn(shard.full_sizes, initializer);
  at::Tensor local;
  if (how_.allocate && !full.is_meta()) {
    local = how_.allocate(shard.local_sizes, full.options());
    take_shard(shard, full, local);
  } else {
    local = take_shard(shard, full);
  }
  return module_.register_distributed_parameter(
      name, std::move(local), {std::move(shard), how_.scaled_batch});
}

at::Tensor ParameterCreationScope::initialize_with_input_partition(
    const std::string& name,
    const std::vector<std::int64_t>& sizes,
    Initializer initializer) const {
  const TensorParallel& parallel = module_.parallel();
  const auto dim = static_cast<std::int64_t>(sizes.size()) - 1;
  const Range range = even_range(sizes.back(), parallel.size(), parallel.rank());
  return initialize_shard(name, slice_of(sizes, dim, range), std::move(initializer));
}

at::Tensor ParameterCreationScope::initialize_with_output_partition(
    const std::string& name,
    const std::vector<std::int64_t>& sizes,
    Initializer initializer) const {
  const TensorParallel& parallel = module_.parallel();
  const Range range = even_range(sizes.front(), parallel.size(), parallel.rank());
  return initialize_shard(name, slice_of(sizes, 0, range), std::move(initializer));
}

at::Tensor ParameterCreationScope::initialize_whole(
    const std::string& name,
    const std::vector<std::int64_t>& sizes,
    Initializer initializer) const {
  return module_.register_distributed_parameter(
      name, drawn(sizes, initializer), {whole(sizes), false});
}

void ParameterCreationScope::skip(const std::vector<std::int64_t>& sizes, Initializer initializer)
    const {
  // The copy is made as well, because with delayed parameters every operator draws a number.
  take_shard(whole(sizes), drawn(sizes, initializer));
}

ParameterCreationScope parameter_creation_scope(DistributedModule& module, ParameterCreation how) {
  return {module, std::move(how)};
}

} // namespace tessera::nn
