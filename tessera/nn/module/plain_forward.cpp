#include <vector>

#include <ATen/ATen.h>

#include "tessera/nn/module/module_call.h"
#include "tessera/recompute/kept_dropout.h"
#include "tessera/recompute/kept_products.h"

namespace tessera::nn {

at::Tensor linear_forward(torch::nn::LinearImpl& linear, const at::Tensor& x) {
  const at::Tensor given = recompute::given_product();
  if (!given.defined()) {
    const at::Tensor y = linear.torch::nn::LinearImpl::forward(x);
    recompute::keep_product(y);
    return y;
  }
  const at::Tensor y = recompute::kept_linear(
      given.reshape({-1, given.size(-1)}),
      x.reshape({-1, x.size(-1)}),
      linear.weight.t(),
      linear.bias);
  return at::_unsafe_view(y, given.sizes());
}

at::Tensor dropout_forward(torch::nn::DropoutImpl& dropout, const at::Tensor& x) {
  return dropout.is_training() && !dropout.options.inplace()
             ? recompute::kept_dropout(x, dropout.options.p())
             : dropout.torch::nn::DropoutImpl::forward(x);
}

} // namespace tessera::nn
