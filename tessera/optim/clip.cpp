#include "tessera/optim/clip.h"

#include <cmath>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/optim/whole_norms.h"

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
  at::Tensor sum = at::full({1}, sum_of_squares(counted), at::kDouble);
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
