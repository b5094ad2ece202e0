#include "tessera/nn/layers/layer_norm.h"

#include <vector>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "tessera/autograd/node_data.h"
#include "tessera/base/error.h"
#include "tessera/nn/layers/placement.h"
#include "tessera/nn/parallel/parameter_creation.h"
#include "tessera/nn/parallel/skipped.h"
#include "tessera/tensor/torch_compat.h"

namespace tessera::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct NormCall {
  TensorParallel parallel;
  double channels = 0; // of all ranks
  double epsilon = 0;
  bool rms = false;
};

struct Moments {
  at::Tensor mean; // undefined for rms
  at::Tensor inverse; // 1 / deviation
};

/// Computes in the type of `x`, f32 or f64. Sums over this rank's channels are
/// converted to f64 before those of the ranks are added, because with a large mean
/// the variance is a small difference of two large numbers.
Moments moments_of(const NormCall& call, const at::Tensor& x) {
  const bool none = x.size(-1) == 0;
  const auto own = static_cast<double>(x.size(-1));
  std::vector<std::int64_t> rows = x.sizes().vec();
  rows.back() = 1;
  const auto squares_of = [](const at::Tensor& t) {
    return at::linalg_vector_norm(t, 2, at::IntArrayRef{-1}, true).to(at::kDouble).square_();
  };
  if (call.rms) {
    const at::Tensor squares =
        none ? at::zeros(rows, x.options().dtype(at::kDouble)) : squares_of(x);
    all_reduce(call.parallel, squares);
    return {{}, squares.div_(call.channels).add_(call.epsilon).rsqrt_().to(x.scalar_type())};
  }
  at::Tensor sums = at::zeros({2}, x.options().dtype(at::kDouble));
  if (none) {
    std::vector<std::int64_t> both = rows;
    both.insert(both.begin(), 2);
    sums = at::zeros(both, x.options().dtype(at::kDouble));
  } else {
    const at::Tensor mean = x.mean(-1, true);
    const at::Tensor wide = mean.to(at::kDouble);
    sums = at::stack({wide * own, squares_of(x - mean) + wide.square() * own});
  }
  all_reduce(call.parallel, sums);
  sums.div_(call.channels);
  const at::Tensor mean = sums[0];
  const at::Tensor variance = (sums[1] - mean.square()).clamp_min_(0);
  return {mean.to(x.scalar_type()), variance.add_(call.epsilon).rsqrt_().to(x.scalar_type())};
}

at::Tensor normed(const at::Tensor& x, const at::Tensor& mean, const at::Tensor& inverse) {
  return mean.defined() ? (x - mean).mul_(inverse) : x * inverse;
}

struct NormNode : Function<NormNode> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& weight,
      const TorchOptional<at::Tensor>& bias,
      const NodeDataPtr<NormCall>& call) {
    context->set_materialize_grads(false);
    const OwnDerivativeScope scope;
    const auto wide = at::toOpMathType(x.scalar_type());
    const at::Tensor exact = x.to(wide);
    const Moments moments = moments_of(call->value, exact);
    context->save_for_backward({x, weight, moments.mean, moments.inverse});
    scope.saves({x, moments.mean, moments.inverse});
    save_node_data(context, call);
    const at::Tensor unit = normed(exact, moments.mean, moments.inverse);
    const at::Tensor factor = weight.to(wide);
    const at::Tensor y =
        bias.has_value() ? at::addcmul(bias->to(wide), unit, factor) : unit * factor;
    return y.to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    require_first_order("a layer norm that tensor parallelism divides");
    if (!grads[0].defined()) {
      return variable_list(4);
    }
    const auto data = saved_node_data<NormCall>(context);
    const NormCall& call = data->value;
    const auto saved = context->get_saved_variables();
    const at::Tensor& weight = saved[1];
    const at::Tensor& inverse = saved[3];
    const auto wide = inverse.scalar_type();
    const at::Tensor unit = normed(saved[0].to(wide), saved[2], inverse);
    const at::Tensor g = grads[0].to(wide);
    at::Tensor along = g * weight.to(wide);
    const at::Tensor sums = call.rms
                                ? (along * unit).sum(-1, true)
                                : at::stack({(along * unit).sum(-1, true), along.sum(-1, true)});
    all_reduce(call.parallel, sums);
    sums.div_(call.channels);
    if (call.rms) {
      along.addcmul_(unit, sums, -1);
    } else {
      along.addcmul_(unit, sums[0], -1).sub_(sums[1]);
    }
    const std::int64_t width = weight.size(0);
    const at::Tensor rows = g.reshape({-1, width});
    const at::Tensor of_weight = (rows * unit.reshape({-1, width})).sum(0).to(weight.scalar_type());
    at::Tensor of_bias;
    if (!call.rms) {
      of_bias = rows.sum(0).to(weight.scalar_type());
    }
    return {along.mul_(inverse).to(grads[0].scalar_type()), of_weight, of_bias, {}};
  }
};

/// Computes the norm on a rank that has all channels.
at::Tensor plain_norm(
    const DistributedLayerNormOptions& options,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias) {
  if (!options.rms) {
    return at::layer_norm(x, {options.hidden_size}, weight, bias, options.layernorm_epsilon);
  }
  const at::Tensor exact = x.to(at::toOpMathType(x.scalar_type()));
  const at::Tensor scale =
      exact.square().mean(-1, /*keepdim=*/true).add_(options.layernorm_epsilon).rsqrt();
  return weight * (exact * scale).to(weight.scalar_type());
}

} // namespace

DistributedLayerNormImpl::DistributedLayerNormImpl(
    const DistributedLayerNormOptions& options,
    Role role)
    : options(options), role_(role) {
  const auto create = parameter_creation_scope(*this);
  const auto made = [&](const char* name, double value) {
    const std::vector<std::int64_t> sizes{options.hidden_size};
    switch (inside_placement(parallel())) {
      case Placement::kOnMesh:
        return first_row_.create(
            *summa::mesh_of(parallel()),
            create,
            name,
            mesh_blocks(parallel(), options.hidden_size, "DistributedLayerNorm: hidden_size")
                .over_columns,
            1,
            constant(value));
      case Placement::kSharded:
        return create.initialize_with_output_partition(name, sizes, constant(value));
      default:
        return create.initialize_whole(name, sizes, constant(value));
    }
  };
  weight = made("weight", 1);
  if (!options.rms) {
    bias = made("bias", 0);
  }
}

summa::Norm DistributedLayerNormImpl::mesh_norm() const {
  const TensorParallel& on = parallel();
  return {
      on.mesh,
      mesh_blocks(on, options.hidden_size, "DistributedLayerNorm: hidden_size").over_columns,
      options.layernorm_epsilon,
      options.rms};
}

at::Tensor DistributedLayerNormImpl::norm(
    const TensorParallel& parallel,
    const at::Tensor& x,
    const at::Tensor& factors,
    const at::Tensor& offsets) {
  if (inside_placement(parallel) == Placement::kOnMesh) {
    first_row_.agree(*parallel.mesh);
    return summa::layer_norm(mesh_norm(), x, factors, offsets);
  }
  if (parallel.size() == 1 || inside_placement(parallel) != Placement::kSharded) {
    return plain_norm(options, x, factors, offsets);
  }
  const auto channels = static_cast<double>(options.hidden_size);
  const auto call = node_data(NormCall{parallel, channels, options.layernorm_epsilon, options.rms});
  TorchOptional<at::Tensor> given;
  if (offsets.defined()) {
    given = offsets;
  }
  return NormNode::apply(x, factors, given, call);
}

at::Tensor DistributedLayerNormImpl::forward_to(const at::Tensor& x, at::ScalarType dtype) {
  // All ranks of a mesh decide by `dtype`: but for its first row they hold placeholders in place of
  // the weights, whose type says nothing. Under autocast x may be the narrower one.
  if (x.scalar_type() == dtype || x.scalar_type() != at::toOpMathType(dtype)) {
    return forward(x);
  }
  const auto as_x = [&](const at::Tensor& vector) {
    return vector.defined() ? vector.to(x.scalar_type()) : vector;
  };
  return norm(parallel_now(), x, as_x(weight), as_x(bias)).to(dtype);
}

at::Tensor DistributedLayerNormImpl::forward(const at::Tensor& x) {
  const ForwardScope present(*this);
  const TensorParallel parallel = parallel_now();
  if (role_ == Role::kPart) {
    return norm(parallel, x, weight, bias);
  }
  if (x.dim() == 0 || x.size(-1) != options.hidden_size) {
    throw ShapeError(tessera::str(
        "DistributedLayerNorm: the input has sizes ",
        x.sizes(),
        "; its last dimension should be ",
        options.hidden_size,
        " (hidden_size)"));
  }
  if (inside_placement(parallel) == outside_placement(parallel)) {
    return norm(parallel, x, weight, bias);
  }
  // A mesh divides samples, which are the first dimension, among its rows.
  const bool by_samples = inside_placement(parallel) == Placement::kOnMesh && x.dim() > 1;
  const at::Tensor rows = by_samples ? x : x.reshape({-1, options.hidden_size});
  const Lengths samples = samples_of_ranks(parallel, rows.size(0));
  return leave(
             parallel,
             norm(parallel, enter(parallel, rows, samples), weight, bias),
             options.hidden_size,
             samples)
      .view(x.sizes());
}

DistributedLayerNorm make_part_norm(const TransformerOptions& options) {
  return DistributedLayerNorm(
      DistributedLayerNormOptions{
          options.hidden_size, options.layernorm_epsilon, options.rms_layernorm},
      Role::kPart);
}

} // namespace tessera::nn
