#include "tessera/nn/layers/linear.h"

#include <vector>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/process_group.h"
#include "tessera/nn/layers/distributed_product.h"
#include "tessera/nn/layers/placement.h"
#include "tessera/nn/parallel/parameter_creation.h"
#include "tessera/nn/parallel/skipped.h"

namespace tessera::nn {

DistributedLinearImpl::DistributedLinearImpl(std::int64_t in_features, std::int64_t out_features)
    : DistributedLinearImpl(DistributedLinearOptions{in_features, out_features, true}) {}

DistributedLinearImpl::DistributedLinearImpl(const DistributedLinearOptions& options)
    : options(options) {
  const auto create = parameter_creation_scope(*this, creation_for(parallel()));
  if (inside_placement(parallel()) == Placement::kOnMesh) {
    create_on_mesh(create);
    return;
  }
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

summa::LinearLayout DistributedLinearImpl::layout_on_mesh() const {
  return {
      mesh_blocks(parallel(), options.in_features, "DistributedLinear: in_features"),
      mesh_blocks(parallel(), options.out_features, "DistributedLinear: out_features")
          .over_columns};
}

void DistributedLinearImpl::create_on_mesh(const ParameterCreationScope& create) {
  const summa::Mesh& mesh = *parallel().mesh;
  const summa::LinearLayout layout = layout_on_mesh();
  weight = create.initialize_shard(
      "weight",
      block_of_matrix(
          layout.in.over_rows, mesh.row(), layout.out, mesh.column(), 1, /*transposed=*/true),
      linear_weight());
  if (options.bias) {
    bias = first_row_.create(mesh, create, "bias", layout.out, 1, linear_bias(options.in_features));
  }
}

at::Tensor DistributedLinearImpl::bias_of_product(
    const TensorParallel& parallel,
    const at::Tensor& x) const {
  const bool shapes_only = parallel.shapes_only;
  if (!options.bias || parallel.size() == 1 || weight.requires_grad() || x.requires_grad() ||
      (!shapes_only && !at::GradMode::is_enabled())) {
    return bias;
  }
  const at::Tensor trained = at::zeros({1}, at::kLong);
  if (parallel.rank() == 0) {
    trained.fill_(static_cast<std::int64_t>(bias.requires_grad()));
  }
  if (shapes_only) {
    tell_skipped("broadcast", parallel.size(), trained, false);
    return bias;
  }
  parallel.group->broadcast(trained, 0);
  if (parallel.rank() == 0 || trained.item<std::int64_t>() == 0) {
    return bias;
  }
  return at::empty({0}, weight.options()).requires_grad_();
}

at::Tensor DistributedLinearImpl::forward(const at::Tensor& x) {
  const ForwardScope present(*this);
  if (x.dim() == 0 || x.size(-1) != options.in_features) {
    throw ShapeError(tessera::str(
        "DistributedLinear: the input has sizes ",
        x.sizes(),
        "; its last dimension should be ",
        options.in_features,
        " (in_features)"));
  }
  const TensorParallel parallel = parallel_now();
  if (inside_placement(parallel) == Placement::kOnMesh) {
    first_row_.agree(*parallel.mesh);
    const at::Tensor inside = enter(parallel, x, {});
    const at::Tensor y = summa::linear(parallel.mesh, layout_on_mesh(), inside, weight, bias);
    return leave(parallel, y, options.out_features, {});
  }
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = options.out_features;
  at::Tensor rows = x.reshape({-1, options.in_features});
  const at::Tensor added = bias_of_product(parallel, x);
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
  // No view for autograd: a script may change what a layer returns in place.
  return at::_unsafe_view(distributed_product(parallel, plan, rows, weight, added), sizes);
}

} // namespace tessera::nn
