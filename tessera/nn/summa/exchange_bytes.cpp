#include "tessera/nn/summa/exchange_bytes.h"

#include <algorithm>
#include <initializer_list>
#include <vector>

#include <c10/util/accumulate.h>

#include "tessera/nn/summa/stationary_weights.h"

namespace tessera::nn::summa {

namespace {

std::int64_t elements(const std::vector<std::int64_t>& sizes) {
  return c10::multiply_integers(sizes);
}

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
ExchangeBytes bytes_in_window(const Mesh& mesh, const Product& product) {
  std::int64_t staged = 0;
  if (moves_a(product.form)) {
    staged += product.a.numel();
  }
  const int adders = product.form == Form::kABt ? mesh.columns() : mesh.rows();
  if (adds_parts(product.form) && adders > 1) {
    std::int64_t most = 0;
    for (const Panel& panel : product.panels) {
      most = std::max(most, elements(product.partial_sizes(panel)));
    }
    staged += most * static_cast<std::int64_t>(product.panels.size());
  }
  return in_bytes({2 * staged, 0, 0}, product.out);
}

/// Of two panels of each matrix and two parts of the result, as BroadcastExchange has.
ExchangeBytes bytes_of_panels(const Mesh& mesh, const Product& product) {
  std::int64_t a = 0;
  std::int64_t b = 0;
  std::int64_t part = 0;
  for (const Panel& panel : product.panels) {
    a = std::max(a, moves_a(product.form) ? elements(product.panel_a_sizes(panel)) : 0);
    b = std::max(
        b, moves_b(product.form) && mesh.rows() > 1 ? elements(product.panel_b_sizes(panel)) : 0);
    part = std::max(part, adds_parts(product.form) ? elements(product.partial_sizes(panel)) : 0);
  }
  return in_bytes({2 * (a + b + part), 0, 0}, product.out);
}

/// Blocks of X and Y and a part of the result, staged for two products in turn, and the rows of all
/// mesh rows that a rank has gathered, as WindowRows has.
ExchangeBytes bytes_of_stationary(
    const Mesh& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout,
    const at::Tensor& out) {
  const bool of_weight = form == Form::kAtB;
  const at::Tensor& weight = of_weight ? out : b;
  const std::int64_t rows = a.size(0);
  const std::int64_t all_rows = rows * mesh.rows();
  const std::int64_t inner = layout.rows.over_rows.size(mesh.row());
  const std::int64_t outer = weight.size(layout.transposed ? 0 : 1);
  std::int64_t staged = a.numel() + (of_weight ? b.numel() : 0);
  if (!of_weight) {
    staged += all_rows * (form == Form::kAB ? outer : inner);
  }
  return in_bytes(
      {2 * staged,
       form == Form::kABt ? 0 : all_rows * inner,
       form == Form::kAB ? 0 : all_rows * outer},
      out);
}

/// Of both gradients in one exchange (gradients_stationary).
ExchangeBytes bytes_of_both_gradients(
    const Mesh& mesh,
    const at::Tensor& x,
    const at::Tensor& y,
    const WeightLayout& layout) {
  const std::int64_t all_rows = x.size(0) * mesh.rows();
  const std::int64_t inner = layout.rows.over_rows.size(mesh.row());
  const std::int64_t staged = x.numel() + y.numel() + all_rows * inner;
  return in_bytes({2 * staged, all_rows * inner, all_rows * y.size(1)}, y);
}

} // namespace

ExchangeBytes exchange_bytes(
    const Mesh& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout,
    const at::Tensor& out) {
  if (mesh.group().size() == 1) {
    return {};
  }
  const bool multiplies = form != Form::kTakeB && form != Form::kSumB;
  if (multiplies && stationary_weights_pay(mesh, form, a.size(0), layout)) {
    return bytes_of_stationary(mesh, form, a, b, layout, out);
  }
  const Product product = {form, a, b, layout.rows, out, layout.transposed};
  return mesh.reads_all() ? bytes_in_window(mesh, product) : bytes_of_panels(mesh, product);
}

ExchangeBytes exchange_bytes_with_gradients(
    const Mesh& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout,
    const at::Tensor& out) {
  const auto bytes =
      [&](Form other, const at::Tensor& x, const at::Tensor& y, const at::Tensor& result) {
        return exchange_bytes(mesh, other, x, y, layout, result);
      };
  const ExchangeBytes own = bytes(form, a, b, out);
  switch (form) {
    case Form::kAB:
      if (gradients_are_one_exchange(mesh, out.size(0), layout)) {
        return most_of({own, bytes_of_both_gradients(mesh, a, out, layout)});
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
