#include <ATen/ATen.h>

#include "tessera/nn/summa/exchange.h"
#include "tessera/nn/summa/first_row.h"
#include "tessera/nn/summa/functional.h"
#include "tessera/nn/summa/gemm.h"
#include "tessera/nn/summa/summa.h"
#include "tessera/recompute/kept_products.h"

namespace tessera::nn::summa {

namespace {

/// Returns `columns` if `x` has the same sizes on all ranks, which then all decide
/// alike whether the weight is stationary; else 0 (WeightLayout::columns).
std::int64_t columns_to_tell(const Mesh& mesh, const at::Tensor& x, std::int64_t columns) {
  return mesh.as_long_everywhere(x.sizes().slice(0, x.dim() - 1)) ? columns : 0;
}

std::vector<std::int64_t> with_last(const at::Tensor& x, std::int64_t size) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = size;
  return sizes;
}

/// Keeps the result of a whole layer, with its bias, for a recomputed region. Returns it.
at::Tensor kept(at::Tensor y) {
  recompute::keep_product(y);
  return y;
}

} // namespace

at::Tensor linear(
    const MeshPtr& mesh,
    const LinearLayout& layout,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias) {
  const std::int64_t columns = columns_to_tell(*mesh, x, layout.groups * layout.out.length());
  at::Tensor y = summa_product(
      mesh, Form::kAB, as_matrix(x), weight, {layout.in, /*stored_transposed=*/true, columns});
  if (bias.defined()) {
    y = add_from_first_row(mesh, y, bias);
  }
  return kept(at::_unsafe_view(y, with_last(x, layout.groups * layout.out.size(mesh->column()))));
}

at::Tensor tied_linear(
    const MeshPtr& mesh,
    const at::Tensor& x,
    const at::Tensor& table,
    const MeshBlocks& vocabulary,
    std::int64_t hidden) {
  const std::int64_t columns = columns_to_tell(*mesh, x, hidden);
  const at::Tensor y = summa_product(
      mesh, Form::kABt, as_matrix(x), table, {vocabulary, /*stored_transposed=*/false, columns});
  return kept(at::_unsafe_view(y, with_last(x, vocabulary.over_columns.size(mesh->column()))));
}

} // namespace tessera::nn::summa
