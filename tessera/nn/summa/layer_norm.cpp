#include "tessera/nn/summa/layer_norm.h"

#include <ATen/ATen.h>

#include "tessera/autograd/node_data.h"
#include "tessera/nn/parallel/collectives.h"
#include "tessera/nn/parallel/skipped.h"
#include "tessera/nn/summa/first_row.h"

namespace tessera::nn::summa {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Moments {
  at::Tensor mean; // [positions, 1]
  at::Tensor variance;
};

/// Computes the moments of whole rows from each rank's mean and sum of squared distances.
Moments moments_of(const Norm& norm, const at::Tensor& x) {
  const Mesh& mesh = *norm.mesh;
  const at::Tensor mean = x.mean(1);
  const at::Tensor squares = (x - mean.unsqueeze(1)).square_().sum(1);
  const at::Tensor all = gather_blocks(mesh.along_row(), at::stack({mean, squares}));
  const auto length = static_cast<double>(norm.hidden.length());
  at::Tensor whole_mean = at::zeros_like(mean);
  for (int column = 0; column < mesh.columns(); ++column) {
    whole_mean.add_(all[column][0], static_cast<double>(norm.hidden.size(column)) / length);
  }
  at::Tensor sum = at::zeros_like(mean);
  for (int column = 0; column < mesh.columns(); ++column) {
    sum.add_(all[column][1]);
    sum.add_(
        (all[column][0] - whole_mean).square_(), static_cast<double>(norm.hidden.size(column)));
  }
  return {whole_mean.unsqueeze(1), sum.div_(length).unsqueeze(1)};
}

class LayerNormOnMesh : public torch::autograd::Function<LayerNormOnMesh> {
 public:
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& x,
      const at::Tensor& gamma,
      const at::Tensor& beta,
      const NodeDataPtr<Norm>& norm) {
    ctx->set_materialize_grads(false);
    const OwnDerivativeScope scope;
    NormState state;
    at::Tensor y = norm_forward(norm->value, x, gamma, beta, state);
    ctx->save_for_backward({state.normed, state.inverse, state.affine});
    scope.saves({state.normed, state.inverse, state.affine});
    ctx->saved_data["dtype"] = static_cast<std::int64_t>(x.scalar_type());
    save_node_data(ctx, norm);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    require_first_order("a layer norm on a mesh");
    if (!gradients[0].defined()) {
      return variable_list(4);
    }
    const auto tensors = ctx->get_saved_variables();
    NormGradients result = norm_backward(
        saved_node_data<Norm>(ctx)->value,
        {tensors[0], tensors[1], tensors[2]},
        gradients[0],
        ctx->needs_input_grad(0),
        ctx->needs_input_grad(1) || ctx->needs_input_grad(2));
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    for (at::Tensor* gradient : {&result.gamma, &result.beta}) {
      if (gradient->defined()) {
        *gradient = gradient->to(dtype);
      }
    }
    return {result.x, result.gamma, result.beta, at::Tensor()};
  }
};

} // namespace

at::Tensor norm_forward(
    const Norm& norm,
    const at::Tensor& x,
    const at::Tensor& gamma,
    const at::Tensor& beta,
    NormState& state) {
  const at::NoGradGuard no_grad;
  const Mesh& mesh = *norm.mesh;
  const auto width = x.size(-1);
  // Statistics in f32 at least.
  const at::ScalarType type = at::promoteTypes(x.scalar_type(), at::kFloat);
  const at::Tensor wide = x.reshape({-1, width}).to(type);
  if (norm.rms) {
    const at::Tensor squares = wide.square().sum(1, true);
    all_reduce(mesh.along_row(), squares);
    squares.div_(static_cast<double>(norm.hidden.length()));
    state.inverse = squares.add_(norm.eps).rsqrt_();
    state.normed = wide * state.inverse;
  } else {
    const Moments moments = moments_of(norm, wide);
    state.inverse = at::rsqrt(moments.variance + norm.eps);
    state.normed = (wide - moments.mean).mul_(state.inverse);
  }
  at::Tensor affine = gamma;
  if (mesh.row() == 0) {
    affine = (norm.rms ? at::stack({gamma}) : at::stack({gamma, beta})).to(type);
  }
  state.affine =
      broadcast_from_first_row(mesh, affine, {norm.rms ? 1 : 2, width}, state.normed.options());
  const at::Tensor y = norm.rms ? state.normed * state.affine[0]
                                : at::addcmul(state.affine[1], state.normed, state.affine[0]);
  return y.to(x.scalar_type()).view(x.sizes());
}

NormGradients norm_backward(
    const Norm& norm,
    const NormState& state,
    const at::Tensor& gradient,
    bool for_x,
    bool for_parameters) {
  const at::NoGradGuard no_grad;
  const Mesh& mesh = *norm.mesh;
  const at::Tensor& normed = state.normed;
  const at::Tensor wide = gradient.reshape(normed.sizes()).to(normed.scalar_type());
  NormGradients result;
  if (for_parameters) {
    const at::Tensor along = (wide * normed).sum(0);
    const at::Tensor sum =
        reduce_to_first_row(mesh, norm.rms ? at::stack({along}) : at::stack({along, wide.sum(0)}));
    if (sum.defined()) {
      result.gamma = sum[0];
      result.beta = norm.rms ? at::Tensor() : sum[1];
    }
  }
  if (for_x) {
    const at::Tensor of_normed = wide * state.affine[0];
    const at::Tensor along = (of_normed * normed).sum(1, true);
    const at::Tensor sums =
        norm.rms ? at::stack({along}) : at::stack({of_normed.sum(1, true), along});
    all_reduce(mesh.along_row(), sums);
    sums.div_(static_cast<double>(norm.hidden.length()));
    const at::Tensor centred = norm.rms ? of_normed : of_normed - sums[0];
    result.x = at::addcmul(centred, normed, sums[-1], -1)
                   .mul_(state.inverse)
                   .to(gradient.scalar_type())
                   .view(gradient.sizes());
  }
  return result;
}

at::Tensor
layer_norm(const Norm& norm, const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& beta) {
  // RMSNorm has no beta, but autograd wants a tensor for every argument.
  return LayerNormOnMesh::apply(x, gamma, norm.rms ? gamma.detach() : beta, node_data(norm));
}

} // namespace tessera::nn::summa
