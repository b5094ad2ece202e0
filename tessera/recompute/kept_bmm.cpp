#include "tessera/recompute/kept_bmm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/autograd/node_data.h"
#include "tessera/recompute/kept_products.h"

namespace tessera::recompute {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct KeptBmm : Function<KeptBmm> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& given,
      const at::Tensor& a,
      const at::Tensor& b) {
    context->set_materialize_grads(false);
    context->save_for_backward({a, b});
    return given.variable_data();
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    require_first_order("a product that is kept");
    if (!gradients[0].defined()) {
      return variable_list(3);
    }
    const auto saved = context->get_saved_variables();
    const at::Tensor& gradient = gradients[0];
    const auto turned = [](const at::Tensor& t) { return t.transpose(1, 2); };
    return {
        at::Tensor(),
        context->needs_input_grad(1) ? gradient.bmm(turned(saved[1])) : at::Tensor(),
        context->needs_input_grad(2) ? turned(saved[0]).bmm(gradient) : at::Tensor()};
  }
};

} // namespace

at::Tensor kept_bmm(const at::Tensor& a, const at::Tensor& b) {
  if (const at::Tensor given = given_product(); given.defined()) {
    const auto type = given.scalar_type(); // that of autocast, where it is on
    return KeptBmm::apply(given, a.to(type), b.to(type));
  }
  const at::Tensor y = at::bmm(a, b);
  keep_product(y);
  return y;
}

} // namespace tessera::recompute
