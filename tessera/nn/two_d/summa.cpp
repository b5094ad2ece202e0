#include "tessera/nn/two_d/summa.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/base/error.h"
#include "tessera/nn/two_d/product.h"
#include "tessera/tensor/weight_gradient.h"

namespace tessera::nn::two_d {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What a node keeps besides tensors.
struct ProductNode : torch::CustomClassHolder {
  ProductNode(MeshPtr on, Form of, Blocks over, bool stored_transposed)
      : mesh(std::move(on)),
        form(of),
        inner(std::move(over)),
        transposed(stored_transposed) {}
  MeshPtr mesh;
  Form form;
  Blocks inner;
  bool transposed; // the same matrix in the product and in its gradients
};

at::Tensor summa(
    const MeshPtr& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const Blocks& inner,
    bool transposed);

class Summa : public torch::autograd::Function<Summa> {
 public:
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& a,
      const at::Tensor& b,
      const c10::intrusive_ptr<ProductNode>& node) {
    const Mesh& mesh = *node->mesh;
    const at::Tensor out = at::empty(
        result_sizes(mesh, node->form, a, b, node->inner, node->transposed),
        a.options());
    multiply(mesh, node->form, a, b, node->inner, out, node->transposed);
    ctx->save_for_backward({a, b});
    ctx->saved_data["node"] = c10::IValue::make_capsule(node);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& a = saved[0];
    const at::Tensor& b = saved[1];
    const auto capsule = ctx->saved_data["node"].toCapsule();
    const auto& node = static_cast<const ProductNode&>(*capsule);
    const at::Tensor& c = gradients[0];
    const auto product =
        [&](Form form, const at::Tensor& x, const at::Tensor& y) {
          return summa(node.mesh, form, x, y, node.inner, node.transposed);
        };
    const bool for_a = ctx->needs_input_grad(0);
    const bool for_b = ctx->needs_input_grad(1);
    at::Tensor grad_a;
    at::Tensor grad_b;
    switch (node.form) {
      case Form::kAB: // equation 1
        grad_a = for_a ? product(Form::kABt, c, b) : at::Tensor();
        grad_b = for_b ? weight_gradient(node, a, c, b) : at::Tensor();
        break;
      case Form::kAtB: // equation 2
        grad_a = for_a ? product(Form::kABt, b, c) : at::Tensor();
        grad_b = for_b ? product(Form::kAB, a, c) : at::Tensor();
        break;
      case Form::kABt: // equation 3
        grad_a = for_a ? product(Form::kAB, c, b) : at::Tensor();
        grad_b = for_b ? product(Form::kAtB, c, a) : at::Tensor();
        break;
      default:
        TESSERA_CHECK(false, "not a product");
    }
    // Whoever gets these gradients may change what others read.
    node.mesh->exchange().wait_for_readers();
    return {grad_a, grad_b, at::Tensor()};
  }

 private:
  /// A^T C; added to B's gradient where that is possible.
  static at::Tensor weight_gradient(
      const ProductNode& node,
      const at::Tensor& a,
      const at::Tensor& c,
      const at::Tensor& b) {
    const at::Tensor sum = addable_gradient(b);
    if (!sum.defined() || !sum.is_contiguous()) {
      return summa(node.mesh, Form::kAtB, a, c, node.inner, node.transposed);
    }
    multiply(
        *node.mesh, Form::kAtB, a, c, node.inner, sum, node.transposed, true);
    return {};
  }
};

at::Tensor summa(
    const MeshPtr& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const Blocks& inner,
    bool transposed) {
  return Summa::apply(
      a, b, c10::make_intrusive<ProductNode>(mesh, form, inner, transposed));
}

/// With history the backward comes before anybody changes an operand.
at::Tensor settled(const MeshPtr& mesh, at::Tensor result) {
  if (!at::GradMode::is_enabled()) {
    mesh->exchange().wait_for_readers();
  }
  return result;
}

} // namespace

at::Tensor summa_ab(
    const MeshPtr& mesh,
    const at::Tensor& a,
    const at::Tensor& b,
    const Blocks& inner,
    bool transposed) {
  return settled(mesh, summa(mesh, Form::kAB, a, b, inner, transposed));
}

at::Tensor summa_abt(
    const MeshPtr& mesh,
    const at::Tensor& a,
    const at::Tensor& b,
    const Blocks& inner,
    bool transposed) {
  return settled(mesh, summa(mesh, Form::kABt, a, b, inner, transposed));
}

at::Tensor summa_atb(
    const MeshPtr& mesh,
    const at::Tensor& a,
    const at::Tensor& b,
    const Blocks& inner,
    bool transposed) {
  return settled(mesh, summa(mesh, Form::kAtB, a, b, inner, transposed));
}

} // namespace tessera::nn::two_d
