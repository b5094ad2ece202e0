#include "tessera/nn/summa/row0.h"

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/parallel/context.h"
#include "tessera/nn/parallel/skipped.h"
#include "tessera/nn/summa/node.h"

namespace tessera::nn::two_d {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class AddFromRow0 : public torch::autograd::Function<AddFromRow0> {
 public:
  static at::Tensor forward(
      AutogradContext* ctx,
      at::Tensor y,
      const at::Tensor& vector,
      const KeptPtr<MeshPtr>& mesh) {
    y.add_(broadcast_from_row0(*mesh->value, vector, {y.size(-1)}, y.options()));
    ctx->mark_dirty({y});
    save(ctx, mesh);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    require_first_order("a bias");
    const at::Tensor& gradient = gradients[0];
    at::Tensor of_vector;
    if (ctx->needs_input_grad(1)) {
      of_vector = reduce_to_row0(
          *saved<MeshPtr>(ctx)->value, gradient.reshape({-1, gradient.size(-1)}).sum(0));
    }
    return {gradient, of_vector, at::Tensor()};
  }
};

} // namespace

at::Tensor broadcast_from_row0(
    const Mesh& mesh,
    const at::Tensor& vector,
    at::IntArrayRef sizes,
    const at::TensorOptions& options) {
  const at::NoGradGuard no_grad;
  const bool mine = mesh.row() == 0;
  if (mine && vector.sizes() != sizes) {
    throw ShapeError(tessera::str(
        "mesh row 0 broadcasts a tensor of ",
        vector.sizes(),
        " along column ",
        mesh.column(),
        ", which expects ",
        sizes));
  }
  if (mesh.side() == 1) {
    return vector.detach();
  }
  const at::Tensor whole =
      mine ? vector.detach().to(options).contiguous() : at::zeros(sizes, options);
  if (tensor_parallel().shapes_only) {
    tell_skipped("broadcast", mesh.side(), whole);
  } else {
    mesh.column_group().broadcast(whole, mesh.in_column(0));
  }
  return whole;
}

at::Tensor reduce_to_row0(const Mesh& mesh, const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  if (mesh.side() > 1 && !tensor_parallel().shapes_only) {
    mesh.column_group().reduce(tensor, mesh.in_column(0), comm::ReduceOp::kSum);
  }
  return mesh.row() == 0 ? tensor : at::Tensor();
}

at::Tensor add_from_row0(const MeshPtr& mesh, const at::Tensor& y, const at::Tensor& vector) {
  return AddFromRow0::apply(y, vector, keep(mesh));
}

} // namespace tessera::nn::two_d
