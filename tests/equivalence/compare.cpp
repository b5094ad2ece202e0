#include "tests/equivalence/compare.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::equivalence {

Tolerances tolerances_of(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return {5e-3, 5e-3, 5e-3};
    case at::kBFloat16:
      return {4e-2, 4e-2, 4e-2};
    default:
      return {};
  }
}

void Comparison::same(
    const torch::Tensor& got,
    const torch::Tensor& wanted,
    const std::string& what,
    double noise) {
  if (got.sizes() != wanted.sizes() || got.dtype() != wanted.dtype()) {
    add(tessera::str(
        what,
        ": ",
        got.toString(),
        got.sizes(),
        " instead of ",
        wanted.toString(),
        wanted.sizes()));
    return;
  }
  const auto x = got.to(torch::kDouble);
  const auto y = wanted.to(torch::kDouble);
  // In 16 bits one process may reach infinity too.
  const auto zero = torch::zeros({}, torch::kDouble);
  const double difference = torch::where(x == y, zero, x - y).norm().item<double>();
  const double norm = torch::where(torch::isfinite(y), y, zero).norm().item<double>();
  const double limit = std::max(allowed.relative * norm, noise);
  if (limit > 0) {
    worst = std::max(worst, allowed.relative * difference / limit);
  }
  if (!(difference <= limit)) {
    only_numbers = only_numbers && std::isfinite(difference);
    differences.push_back(tessera::str(what, ": off by ", difference, ", norm ", norm));
  }
}

void Comparison::same(double got, double wanted, const std::string& what) {
  const auto tensor = [](double value) { return torch::full({1}, value, torch::kDouble); };
  same(tensor(got), tensor(wanted), what, 1e-9);
}

void Comparison::add(std::string difference) {
  only_numbers = false;
  differences.push_back(std::move(difference));
}

} // namespace tessera::equivalence
