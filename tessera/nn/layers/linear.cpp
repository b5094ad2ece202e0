#include "tessera/nn/layers/linear.h"

#include <vector>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/layers/placement.h"
#include "tessera/nn/layers/product.h"
#include "tessera/nn/parallel/parameter_creation.h"

namespace tessera::nn {

DistributedLinearImpl::DistributedLinearImpl(std::int64_t in_features, std::int64_t out_features)
    : DistributedLinearImpl(DistributedLinearOptions{in_features, out_features, true}) {}

DistributedLinearImpl::DistributedLinearImpl(const DistributedLinearOptions& options)
    : options(options) {
  const auto create = parameter_creation_scope(*this);
  weight = create.initialize_with_input_partition(
      "weight", {options.out_features, options.in_features}, linear_weight());
  if (options.bias) {
    const std::vector<std::int64_t> sizes{options.out_features};
    if (parallel().rank() == 0) {
      bias = create.initialize_shard("bias", whole(sizes), linear_bias(options.in_features));
    } else {
      create.skip(sizes, linear_bias(options.in_features));
    }
  }
}

at::Tensor DistributedLinearImpl::forward(const at::Tensor& x) {
  if (x.dim() == 0 || x.size(-1) != options.in_features) {
    throw ShapeError(tessera::str(
        "DistributedLinear: the input has sizes ",
        x.sizes(),
        "; its last dimension should be ",
        options.in_features,
        " (in_features)"));
  }
  const TensorParallel parallel = parallel_now();
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = options.out_features;
  at::Tensor rows = x.reshape({-1, options.in_features});
  ProductPlan plan;
  plan.bias_inside = true;
  if (parallel.prescaled_batch) {
    rows = shard_channels(parallel, rows);
    plan.result = Result::kReplicated;
  } else {
    plan.operand = Operand::kOwnSamplesToShard;
    plan.result = Result::kOwnSamples;
    plan.in = even_lengths(options.in_features, parallel.size());
    plan.rows = exchange_length(parallel, rows.size(0));
  }
  return distributed_product(parallel, plan, rows, weight, bias).view(sizes);
}

} // namespace tessera::nn
