#include "tessera/optim/clip.h"

#include <cmath>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::optim {

double clip_grad_norm(
    const std::vector<at::Tensor>& gradients,
    const std::vector<at::Tensor>& counted,
    double max_norm,
    comm::ProcessGroup& group) {
  if (!(max_norm > 0)) {
    throw ConfigError(str("clip_grad_norm: max_norm is ", max_norm, "; write more than 0"));
  }
  const at::NoGradGuard no_grad;
  double square = 0;
  for (const at::Tensor& gradient : counted) {
    const at::Tensor values = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
    const double norm = values.to(at::kFloat).norm(2, at::kDouble).item<double>();
    square += norm * norm;
  }
  at::Tensor sum = at::full({1}, square, at::kDouble);
  group.all_reduce(sum);
  const double norm = std::sqrt(sum.item<double>());
  // The small number is torch's own, for equal results.
  const double factor = max_norm / (norm + 1e-6);
  if (factor < 1) {
    for (at::Tensor gradient : gradients) {
      (gradient.is_sparse() ? gradient._values() : gradient).mul_(factor);
    }
  }
  return norm;
}

} // namespace tessera::optim
