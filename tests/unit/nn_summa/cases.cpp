#include "cases.h"

#include <stdexcept>

#include <ATen/CPUGeneratorImpl.h>

#include "tessera/base/error.h"
#include "tessera/nn/summa/exchange.h"

namespace tessera::nn::summa::cases {

Random::Random(std::uint64_t seed) : generator_(at::make_generator<at::CPUGeneratorImpl>(seed)) {}

at::Tensor Random::normal(at::IntArrayRef sizes) {
  return at::empty(sizes).normal_(0, 1, generator_);
}

at::Tensor Random::integers(std::int64_t end, at::IntArrayRef sizes) {
  return at::randint(0, end, sizes, generator_, at::kLong);
}

std::vector<Case> cases_of_values() {
  std::vector<Case> all = product_cases();
  for (const auto* more :
       {&layer_cases(), &few_rows_cases(), &transformer_cases(), &option_cases(), &head_cases()}) {
    all.insert(all.end(), more->begin(), more->end());
  }
  return all;
}

std::vector<Case> all_cases() {
  std::vector<Case> all = cases_of_values();
  all.insert(all.end(), managed_cases().begin(), managed_cases().end());
  return all;
}

void require(bool condition, const std::string& text) {
  if (!condition) {
    throw std::runtime_error(text);
  }
}

void require_close(
    const at::Tensor& found,
    const at::Tensor& expected,
    double tolerance,
    const std::string& what) {
  require(found.defined(), what + " is undefined");
  require(
      found.sizes() == expected.sizes(),
      tessera::str(what, " has sizes ", found.sizes(), ", not ", expected.sizes()));
  if (found.numel() == 0) {
    return;
  }
  const auto wide = expected.to(at::kDouble);
  const double error = (found.to(at::kDouble) - wide).abs().max().item<double>();
  const double scale = std::max(1.0, wide.abs().max().item<double>());
  require(
      error <= tolerance * scale, // false for a NaN
      tessera::str(what, " differs by ", error, " of ", scale));
}

at::Tensor
block_of(const Mesh& mesh, const at::Tensor& full, const Blocks& rows, const Blocks& columns) {
  return full.narrow(0, rows.start(mesh.row()), rows.size(mesh.row()))
      .narrow(1, columns.start(mesh.column()), columns.size(mesh.column()))
      .contiguous();
}

} // namespace tessera::nn::summa::cases
