#include "tessera/nn/summa/product.h"

#include <algorithm>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/caller.h"
#include "tessera/comm/process_group.h"
#include "tessera/nn/parallel/context.h"
#include "tessera/nn/parallel/skipped.h"
#include "tessera/nn/summa/exchange_bytes.h"
#include "tessera/nn/summa/gemm.h"
#include "tessera/nn/summa/stationary_weights.h"

namespace tessera::nn::summa {

namespace {

const char* name_of(Form form) {
  switch (form) {
    case Form::kAB:
      return "C = A B";
    case Form::kABt:
      return "C = A B^T";
    case Form::kAtB:
      return "C = A^T B";
    default:
      break;
  }
  return "";
}

void check(
    const Mesh& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout) {
  const MeshBlocks& inner = layout.rows;
  // The dimension of B as stored that its inner rows run over.
  const std::int64_t rows = layout.transposed ? 1 : 0;
  const auto of_column = inner.over_columns.size(mesh.column());
  const auto of_row = inner.over_rows.size(mesh.row());
  bool fits = a.dim() == 2 && b.dim() == 2 && inner.over_rows.parts() == mesh.rows() &&
              inner.over_columns.parts() == mesh.columns() && a.scalar_type() == b.scalar_type();
  if (fits) {
    switch (form) {
      case Form::kAB:
        fits = a.size(1) == of_column && b.size(rows) == of_row;
        break;
      case Form::kABt:
        fits = b.size(rows) == of_row && a.size(1) == b.size(1 - rows);
        break;
      case Form::kAtB:
        fits = a.size(1) == of_column && a.size(0) == b.size(0);
        break;
      default:
        fits = false;
    }
  }
  if (!fits) {
    throw ShapeError(tessera::str(
        name_of(form),
        " on a mesh of ",
        mesh.shape_text(),
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

/// Reports to the tracer the transfers of `count` panels in groups of `ranks`,
/// `bytes` in all. A product of SUMMA has one for each step and each operand that
/// moves, and one for each part of the result; a product with stationary weights
/// has those of the rows that travel to the weight, and of the parts that return.
void tell_skipped_panels(int count, int ranks, double bytes) {
  SkippedWork work;
  work.operation = "panel";
  work.ranks = ranks;
  work.bytes = bytes / count;
  work.count = count;
  if (ranks > 1) {
    tell_skipped(work);
  }
}

void tell_skipped_product(
    const Mesh& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout,
    const at::Tensor& out,
    bool stays) {
  const MeshBlocks& inner = layout.rows;
  const int rows = mesh.rows();
  const int columns = mesh.columns();
  const int steps = stays ? rows : static_cast<int>(inner.panels().size());
  const double own_inner = static_cast<double>(inner.length()) / rows; // of a weight's block
  SkippedWork work;
  work.operation = "product";
  work.count = stays ? 1 : steps;
  work.inner = static_cast<double>(inner.length()) / steps;
  work.rows = static_cast<double>(a.size(0) * (stays ? rows : 1));
  // Columns of a step's product: of kABt the inner columns of A, else those of B.
  const double others = form == Form::kABt
                            ? static_cast<double>(a.size(1))
                            : static_cast<double>(b.numel()) / std::max(1.0, own_inner);
  work.columns = form == Form::kAtB ? static_cast<double>(b.size(1)) : others;
  work.buffer_bytes = exchange_bytes_with_gradients(mesh, form, {a, b, layout, out});
  tell_skipped(work);
  if (mesh.group().size() == 1) {
    return;
  }
  const auto bytes = [](const at::Tensor& tensor) { return static_cast<double>(tensor.nbytes()); };
  if (stays) {
    // First X, whose columns are divided among the mesh columns, then Y.
    const bool a_is_y = form == Form::kABt;
    const at::Tensor& y = form == Form::kAtB ? b : (a_is_y ? a : out);
    tell_skipped_panels(steps, rows, bytes(a_is_y ? out : a) * columns);
    tell_skipped_panels(steps, rows, bytes(y) * rows);
    return;
  }
  if (moves_a(form)) {
    tell_skipped_panels(steps, columns, bytes(a) * columns);
  }
  if (moves_b(form)) {
    tell_skipped_panels(steps, rows, bytes(b) * rows);
  }
  if (adds_parts(form)) {
    const int adders = form == Form::kABt ? columns : rows;
    tell_skipped_panels(steps, adders, bytes(out) * adders);
  }
}

} // namespace

std::vector<std::int64_t> result_sizes(
    const Mesh& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout) {
  if (form == Form::kAB) {
    return {a.size(0), b.size(layout.transposed ? 0 : 1)};
  }
  if (form == Form::kABt) {
    return {a.size(0), layout.rows.over_columns.size(mesh.column())};
  }
  const std::int64_t rows = layout.rows.over_rows.size(mesh.row());
  return layout.transposed ? std::vector<std::int64_t>{b.size(1), rows}
                           : std::vector<std::int64_t>{rows, b.size(1)};
}

void multiply(
    const Mesh& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout,
    const at::Tensor& out,
    bool accumulate) {
  const at::NoGradGuard no_grad;
  check(mesh, form, a, b, layout);
  const bool transposed = layout.transposed;
  const bool stays = stationary_weights_pay(mesh, form, a.size(0), layout);
  if (tensor_parallel().shapes_only) {
    tell_skipped_product(mesh, form, a, b, layout, out, stays);
    if (!accumulate && !out.is_meta()) {
      out.zero_();
    }
    return;
  }
  // Multiplies the panels of one step.
  const auto step = [&](const at::Tensor& to, const at::Tensor& x, const at::Tensor& y, bool add) {
    switch (form) {
      case Form::kAB:
        gemm(to, x, transposed ? y.t() : y, add);
        break;
      case Form::kABt:
        gemm(to, x, transposed ? y : y.t(), add);
        break;
      default:
        if (transposed) {
          gemm(to, y.t(), x, add);
        } else {
          gemm(to, x.t(), y, add);
        }
    }
  };
  if (mesh.group().size() == 1) {
    step(out, a, b, accumulate);
    return;
  }
  const comm::CallerScope caller(present_module());
  if (stays) {
    multiply_stationary(mesh, form, a, b, layout, out, accumulate);
    return;
  }
  Exchange& exchange = mesh.exchange();
  const Product product = {form, a, b, layout.rows, out, transposed, accumulate};
  exchange.begin(product);
  for (int l = 0; l < static_cast<int>(product.panels.size()); ++l) {
    const at::Tensor x = moves_a(form) ? exchange.panel_a(l) : a;
    const at::Tensor y = moves_b(form) ? exchange.panel_b(l) : b;
    if (adds_parts(form)) {
      const Panel& panel = product.panels[static_cast<std::size_t>(l)];
      step(exchange.partial(l), x, y, accumulate && product.adds_here(mesh, panel));
      exchange.send_partial(l);
    } else {
      step(out, x, y, accumulate || l > 0);
    }
  }
  exchange.finish();
}

} // namespace tessera::nn::summa
