#include "tessera/nn/two_d/product.h"

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::nn::two_d {

namespace {

const char* name_of(Form form) {
  switch (form) {
    case Form::kAB:
      return "C = A B";
    case Form::kABt:
      return "C = A B^T";
    case Form::kAtB:
      return "C = A^T B";
  }
  return "";
}

/// c = x y, or c += x y.
void gemm(
    at::Tensor c,
    const at::Tensor& x,
    const at::Tensor& y,
    bool accumulate) {
  if (accumulate) {
    c.addmm_(x, y);
  } else {
    at::mm_out(c, x, y);
  }
}

void check(
    const Mesh& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const Blocks& inner) {
  const auto of_column = inner.size(mesh.column());
  const auto of_row = inner.size(mesh.row());
  bool fits = a.dim() == 2 && b.dim() == 2 && inner.parts() == mesh.side() &&
              a.scalar_type() == b.scalar_type();
  if (fits) {
    switch (form) {
      case Form::kAB:
        fits = a.size(1) == of_column && b.size(0) == of_row;
        break;
      case Form::kABt:
        fits = b.size(0) == of_row && a.size(1) == b.size(1);
        break;
      case Form::kAtB:
        fits = a.size(1) == of_column && a.size(0) == b.size(0);
        break;
    }
  }
  if (!fits) {
    throw ShapeError(tessera::str(
        name_of(form),
        " on a mesh of ",
        mesh.side(),
        " x ",
        mesh.side(),
        ": at row ",
        mesh.row(),
        ", column ",
        mesh.column(),
        " the blocks are A ",
        a.sizes(),
        " ",
        a.scalar_type(),
        " and B ",
        b.sizes(),
        " ",
        b.scalar_type(),
        ", but the dimension of ",
        inner.length(),
        " has blocks of ",
        of_column,
        " (my column) and ",
        of_row,
        " (my row); give every rank its own blocks, of one dtype"));
  }
}

} // namespace

std::vector<std::int64_t> result_sizes(
    const Mesh& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const Blocks& inner) {
  switch (form) {
    case Form::kAB:
      return {a.size(0), b.size(1)};
    case Form::kABt:
      return {a.size(0), inner.size(mesh.column())};
    case Form::kAtB:
      return {inner.size(mesh.row()), b.size(1)};
  }
  return {};
}

void multiply(
    const Mesh& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const Blocks& inner,
    const at::Tensor& out,
    bool accumulate) {
  const at::NoGradGuard no_grad;
  check(mesh, form, a, b, inner);
  if (mesh.side() == 1) {
    gemm(
        out,
        form == Form::kAtB ? a.t() : a,
        form == Form::kABt ? b.t() : b,
        accumulate);
    return;
  }
  Exchange& exchange = mesh.exchange();
  const Product product = {form, a, b, inner, out};
  exchange.begin(product);
  const int mine = form == Form::kABt ? mesh.column() : mesh.row();
  for (int l = 0; l < mesh.side(); ++l) {
    if (form == Form::kAB) {
      const at::Tensor panel_a = exchange.panel_a(l);
      const at::Tensor panel_b = exchange.panel_b(l);
      gemm(out, panel_a, panel_b, accumulate || l > 0);
      continue;
    }
    const at::Tensor x = form == Form::kABt ? a : exchange.panel_a(l).t();
    const at::Tensor y = form == Form::kABt ? exchange.panel_b(l).t() : b;
    gemm(exchange.partial(l), x, y, accumulate && l == mine);
    exchange.send_partial(l);
  }
  exchange.finish();
}

} // namespace tessera::nn::two_d
