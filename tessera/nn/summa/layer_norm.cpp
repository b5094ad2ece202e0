#include "tessera/nn/summa/layer_norm.h"

#include <ATen/ATen.h>

#include "tessera/nn/summa/functional.h"
#include "tessera/nn/summa/gather.h"
#include "tessera/nn/summa/node.h"
#include "tessera/nn/summa/row0.h"

namespace tessera::nn::two_d {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Moments {
  at::Tensor mean; // [positions, 1]
  at::Tensor variance;
};

/// Of the whole rows, from each rank's mean and sum of squared distances.
Moments moments_of(const Norm& norm, const at::Tensor& x) {
  const Mesh& mesh = *norm.mesh;
  const at::Tensor mean = x.mean(1);
  const at::Tensor squares = (x - mean.unsqueeze(1)).square_().sum(1);
  const at::Tensor all = gather_along(mesh, Along::kRow, at::stack({mean, squares}));
  const auto length = static_cast<double>(norm.hidden.length());
  at::Tensor whole_mean = at::zeros_like(mean);
  for (int column = 0; column < mesh.side(); ++column) {
    whole_mean.add_(all[column][0], static_cast<double>(norm.hidden.size(column)) / length);
  }
  at::Tensor sum = at::zeros_like(mean);
  for (int column = 0; column < mesh.side(); ++column) {
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
      const KeptPtr<Norm>& norm) {
    NormState state;
    at::Tensor y = norm_forward(norm->value, x, gamma, beta, state);
    ctx->save_for_backward({state.normed, state.inverse, state.affine});
    ctx->saved_data["dtype"] = static_cast<std::int64_t>(x.scalar_type());
    save(ctx, norm);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    require_first_order("a layer norm");
    const auto tensors = ctx->get_saved_variables();
    NormGradients result = norm_backward(
        saved<Norm>(ctx)->value,
        {tensors[0], tensors[1], tensors[2]},
        gradients[0],
        ctx->needs_input_grad(0),
        ctx->needs_input_grad(1) || ctx->needs_input_grad(2));
    if (result.gamma.defined()) {
      const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
      result.gamma = result.gamma.to(dtype);
      result.beta = result.beta.to(dtype);
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
  const at::Tensor wide = x.reshape({-1, width}).to(at::kFloat);
  const Moments moments = moments_of(norm, wide);
  state.inverse = at::rsqrt(moments.variance + norm.eps);
  state.normed = (wide - moments.mean).mul_(state.inverse);
  state.affine = broadcast_from_row0(
      mesh,
      mesh.row() == 0 ? at::stack({gamma, beta}).to(at::kFloat) : gamma,
      {2, width},
      state.normed.options());
  return at::addcmul(state.affine[1], state.normed, state.affine[0])
      .to(x.scalar_type())
      .view(x.sizes());
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
  const at::Tensor wide = gradient.reshape(normed.sizes()).to(at::kFloat);
  NormGradients result;
  if (for_parameters) {
    const at::Tensor sum = reduce_to_row0(mesh, at::stack({(wide * normed).sum(0), wide.sum(0)}));
    if (sum.defined()) {
      result.gamma = sum[0];
      result.beta = sum[1];
    }
  }
  if (for_x) {
    const at::Tensor of_normed = wide * state.affine[0];
    const at::Tensor sums = at::stack({of_normed.sum(1, true), (of_normed * normed).sum(1, true)});
    sum_along(mesh, Along::kRow, sums);
    sums.div_(static_cast<double>(norm.hidden.length()));
    result.x = (of_normed - sums[0])
                   .addcmul_(normed, sums[1], -1)
                   .mul_(state.inverse)
                   .to(gradient.scalar_type())
                   .view(gradient.sizes());
  }
  return result;
}

at::Tensor layer_norm(
    const MeshPtr& mesh,
    const at::Tensor& x,
    const at::Tensor& gamma,
    const at::Tensor& beta,
    const Blocks& hidden,
    double eps) {
  return LayerNormOnMesh::apply(x, gamma, beta, keep(Norm{mesh, hidden, eps}));
}

} // namespace tessera::nn::two_d
