#include "tessera/optim/whole_norms.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::optim {

double sum_of_squares(const std::vector<at::Tensor>& tensors) {
  double sum = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor values = tensor.is_sparse() ? tensor.coalesce().values() : tensor;
    const auto type = values.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const double norm = values.to(type).norm(2, at::kDouble).item<double>();
    sum += norm * norm;
  }
  return sum;
}

double root_of_sum(std::vector<double> squares) {
  std::sort(squares.begin(), squares.end());
  return std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
}

std::string sparse_problem(const NormOf& of) {
  return of.tensor.is_sparse() ? tessera::str(
                                     "the optimizer needs the norm of a parameter's gradient, and "
                                     "that of a parameter "
                                     "of shape ",
                                     of.parameter.sizes(),
                                     " is sparse; make the embedding dense, or use SGD for it")
                               : std::string();
}

Norms NeedsNorms::norms_of(const std::vector<NormOf>& asked) const {
  if (norms_) {
    return norms_(asked);
  }
  Norms norms;
  std::vector<double> all;
  for (const NormOf& of : asked) {
    const std::string problem = sparse_problem(of);
    if (!problem.empty()) {
      throw UserError(problem);
    }
    all.push_back(sum_of_squares({of.tensor}));
    norms.each.push_back(std::sqrt(all.back()));
  }
  norms.all = root_of_sum(std::move(all));
  return norms;
}

} // namespace tessera::optim
