#include "tessera/nn/summa/exchange_bytes.h"

#include <algorithm>
#include <initializer_list>

#include <c10/util/accumulate.h>

#include "tessera/nn/summa/stationary_weights.h"

namespace tessera::nn::summa {

namespace {

ExchangeBytes in_bytes(const std::array<std::int64_t, 3>& elements, const at::Tensor& like) {
  ExchangeBytes bytes = {};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<double>(elements[i] * static_cast<std::int64_t>(like.element_size()));
  }
  return bytes;
}

ExchangeBytes most_of(std::initializer_list<ExchangeBytes> all) {
  ExchangeBytes most = {};
  for (const ExchangeBytes& one : all) {
    for (std::size_t i = 0; i < most.size(); ++i) {
      most[i] = std::max(most[i], one[i]);
    }
  }
  return most;
}

/// Of two products in turn, as WindowBlocks stages them.
ExchangeBytes bytes_of_panels(const Mesh& mesh, Form form, const ProductMatrices& of) {
  const Product product = {form, of.a, of.b, of.layout.rows, of.out, of.layout.transposed};
  std::int64_t staged = moves_a(form) ? of.a.numel() : 0;
  const int adders = form == Form::kABt ? mesh.columns() : mesh.rows();
  if (adds_parts(form) && adders > 1) {
    std::int64_t most = 0;
    for (const Panel& panel : product.panels) {
      most = std::max(most, c10::multiply_integers(product.partial_sizes(panel)));
    }
    staged += most * static_cast<std::int64_t>(product.panels.size());
  }
  return in_bytes({2 * staged, 0, 0}, of.out);
}

/// Blocks of X and Y and a part of the result, staged for two products in turn, and the rows of all
/// mesh rows that a rank has gathered, as WindowRows has.
ExchangeBytes bytes_of_stationary(const Mesh& mesh, Form form, const ProductMatrices& of) {
  const bool of_weight = form == Form::kAtB;
  const at::Tensor& weight = of_weight ? of.out : of.b;
  const std::int64_t all_rows = of.a.size(0) * mesh.rows();
  const std::int64_t inner = of.layout.rows.over_rows.size(mesh.row());
  const std::int64_t outer = weight.size(of.layout.transposed ? 0 : 1);
  std::int64_t staged = of.a.numel() + (of_weight ? of.b.numel() : 0);
  if (!of_weight) {
    staged += all_rows * (form == Form::kAB ? outer : inner);
  }
  return in_bytes(
      {2 * staged,
       form == Form::kABt ? 0 : all_rows * inner,
       form == Form::kAB ? 0 : all_rows * outer},
      of.out);
}

/// Of both gradients of Y = X W in one exchange (gradients_stationary); Y is `of.out`.
ExchangeBytes bytes_of_both_gradients(const Mesh& mesh, const ProductMatrices& of) {
  const at::Tensor& x = of.a;
  const at::Tensor& y = of.out;
  const std::int64_t all_rows = x.size(0) * mesh.rows();
  const std::int64_t inner = of.layout.rows.over_rows.size(mesh.row());
  const std::int64_t staged = x.numel() + y.numel() + all_rows * inner;
  return in_bytes({2 * staged, all_rows * inner, all_rows * y.size(1)}, y);
}

} // namespace

ExchangeBytes exchange_bytes(const Mesh& mesh, Form form, const ProductMatrices& of) {
  if (mesh.group().size() == 1) {
    return {};
  }
  const bool multiplies = form != Form::kTakeB && form != Form::kSumB;
  return multiplies && stationary_weights_pay(mesh, form, of.a.size(0), of.layout)
             ? bytes_of_stationary(mesh, form, of)
             : bytes_of_panels(mesh, form, of);
}

ExchangeBytes
exchange_bytes_with_gradients(const Mesh& mesh, Form form, const ProductMatrices& of) {
  const auto bytes =
      [&](Form other, const at::Tensor& x, const at::Tensor& y, const at::Tensor& result) {
        return exchange_bytes(mesh, other, {x, y, of.layout, result});
      };
  const auto& [a, b, layout, out] = of;
  const ExchangeBytes own = exchange_bytes(mesh, form, of);
  switch (form) {
    case Form::kAB:
      if (gradients_are_one_exchange(mesh, out.size(0), layout)) {
        return most_of({own, bytes_of_both_gradients(mesh, of)});
      }
      return most_of({own, bytes(Form::kABt, out, b, a), bytes(Form::kAtB, a, out, b)});
    case Form::kAtB:
      return most_of({own, bytes(Form::kABt, b, out, a), bytes(Form::kAB, a, out, b)});
    case Form::kABt:
      return most_of({own, bytes(Form::kAB, out, b, a), bytes(Form::kAtB, out, a, b)});
    default:
      return own;
  }
}

} // namespace tessera::nn::summa
