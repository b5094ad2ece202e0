#include "tessera/nn/summa/summa.h"

#include <ATen/ATen.h>

#include "tessera/autograd/node_data.h"
#include "tessera/autograd/weight_gradient.h"
#include "tessera/base/error.h"
#include "tessera/nn/parallel/context.h"
#include "tessera/nn/parallel/skipped.h"
#include "tessera/nn/summa/product.h"
#include "tessera/nn/summa/stationary_weights.h"
#include "tessera/recompute/kept_products.h"

namespace tessera::nn::summa {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ProductCall {
  MeshPtr mesh;
  Form form;
  WeightLayout layout; // of the same matrix in the product and its gradients
};

at::Tensor with_history(
    const MeshPtr& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout);

class Summa : public torch::autograd::Function<Summa> {
 public:
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& a,
      const at::Tensor& b,
      const NodeDataPtr<ProductCall>& data) {
    ctx->set_materialize_grads(false);
    const OwnDerivativeScope scope;
    const auto& [mesh, form, layout] = data->value;
    // The linear layer keeps this result together with its bias (linear.cpp).
    at::Tensor out = recompute::given_product();
    if (out.defined()) {
      // The result must not be a view, because another node may add a bias to it in place.
      out = at::_unsafe_view(out, result_sizes(*mesh, form, a, b, layout));
    } else {
      out = at::empty(result_sizes(*mesh, form, a, b, layout), a.options());
      multiply(*mesh, form, a, b, layout, out);
    }
    ctx->save_for_backward({a, b});
    scope.saves({a, b});
    save_node_data(ctx, data);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    if (!gradients[0].defined()) {
      return variable_list(3);
    }
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& a = saved[0];
    const at::Tensor& b = saved[1];
    const auto data = saved_node_data<ProductCall>(ctx);
    const ProductCall& call = data->value;
    const at::Tensor& c = gradients[0];
    const auto product = [&](Form form, const at::Tensor& x, const at::Tensor& y) {
      return with_history(call.mesh, form, x, y, call.layout);
    };
    const bool for_a = ctx->needs_input_grad(0);
    const bool for_b = ctx->needs_input_grad(1);
    at::Tensor grad_a;
    at::Tensor grad_b;
    switch (call.form) {
      case Form::kAB: // equation 1
        if (for_a && for_b && both_stationary(call, c)) {
          grad_a = at::empty(a.sizes(), c.options());
          grad_b = both_gradients(call, a, c, b, grad_a);
          break;
        }
        grad_a = for_a ? product(Form::kABt, c, b) : at::Tensor();
        grad_b = for_b ? weight_gradient(call, a, c, b) : at::Tensor();
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
    // The receiver of these gradients may overwrite memory that other ranks still read.
    call.mesh->exchange().wait_for_readers();
    return {grad_a, grad_b, at::Tensor()};
  }

 private:
  /// Returns A^T C, or adds it to B's gradient where that is possible and returns an
  /// undefined tensor.
  static at::Tensor weight_gradient(
      const ProductCall& call,
      const at::Tensor& a,
      const at::Tensor& c,
      const at::Tensor& b) {
    const at::Tensor sum = addable(b);
    if (!sum.defined()) {
      return with_history(call.mesh, Form::kAtB, a, c, call.layout);
    }
    multiply(*call.mesh, Form::kAtB, a, c, call.layout, sum, true);
    return {};
  }

  /// Returns whether both gradients can be computed in one exchange with a stationary weight. That
  /// records no history, so gradients with a graph of their own (create_graph) exclude it.
  static bool both_stationary(const ProductCall& call, const at::Tensor& c) {
    return !at::GradMode::is_enabled() && !tensor_parallel().shapes_only &&
           gradients_are_one_exchange(*call.mesh, c.size(0), call.layout);
  }

  /// Writes A's gradient to `of_a`. Returns B's, or adds it to B's gradient where
  /// that is possible and returns an undefined tensor.
  static at::Tensor both_gradients(
      const ProductCall& call,
      const at::Tensor& a,
      const at::Tensor& c,
      const at::Tensor& b,
      const at::Tensor& of_a) {
    const at::Tensor sum = addable(b);
    const at::Tensor of_b = sum.defined() ? sum : at::empty(b.sizes(), b.options());
    gradients_stationary(*call.mesh, a, c, b, call.layout, of_a, of_b, sum.defined());
    return sum.defined() ? at::Tensor() : of_b;
  }

  /// Returns the gradient of `weight` that a product can add to, else an undefined tensor.
  static at::Tensor addable(const at::Tensor& weight) {
    const at::Tensor sum = addable_gradient(weight);
    return sum.defined() && sum.is_contiguous() ? sum : at::Tensor();
  }
};

// Adds a node to the graph where one of the operands needs a gradient.
at::Tensor with_history(
    const MeshPtr& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout) {
  return Summa::apply(a, b, node_data(ProductCall{mesh, form, layout}));
}

/// Waits, without history, until other ranks have read the operands, which the caller may then
/// change. With history they stay unchanged until the backward, which waits itself.
at::Tensor settled(const MeshPtr& mesh, at::Tensor result) {
  if (!at::GradMode::is_enabled()) {
    mesh->exchange().wait_for_readers();
  }
  return result;
}

} // namespace

at::Tensor summa_product(
    const MeshPtr& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout) {
  return settled(mesh, with_history(mesh, form, a, b, layout));
}

} // namespace tessera::nn::summa
