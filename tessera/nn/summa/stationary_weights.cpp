#include "tessera/nn/summa/stationary_weights.h"

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/summa/gemm.h"
#include "tessera/nn/summa/window_rows.h"

namespace tessera::nn::summa {

namespace {

/// Names of these products in WindowBlocks::Identity, apart from those of SUMMA's forms.
constexpr std::int64_t kStays = 100;
constexpr std::int64_t kBothGradients = 200;

WindowRows::Job job_of(
    std::int64_t name,
    const at::Tensor& activations,
    const at::Tensor& weight,
    const WeightLayout& layout) {
  WindowRows::Job job;
  job.product = {
      name,
      static_cast<std::int64_t>(activations.scalar_type()),
      layout.rows.length(),
      static_cast<std::int64_t>(layout.transposed),
      activations.size(0)};
  job.inner = &layout.rows;
  job.outer = weight.size(layout.transposed ? 0 : 1);
  return job;
}

/// Returns the weight as [inner, outer], whichever way it is stored.
at::Tensor in_order(const at::Tensor& weight, const WeightLayout& layout) {
  return layout.transposed ? weight.t() : weight;
}

/// Computes out = X^T Y, or out += X^T Y, stored as the weight is.
void multiply_weight_gradient(
    const at::Tensor& x,
    const at::Tensor& y,
    const WeightLayout& layout,
    const at::Tensor& out,
    bool accumulate) {
  if (layout.transposed) {
    gemm(out, y.t(), x, accumulate);
  } else {
    gemm(out, x.t(), y, accumulate);
  }
}

} // namespace

bool stationary_weights_pay(
    const Mesh& mesh,
    Form form,
    std::int64_t rows,
    const WeightLayout& layout) {
  if (mesh.rows() == 1 || layout.columns == 0 || !mesh.reads_all()) {
    return false;
  }
  const double q = mesh.rows();
  const double r = mesh.columns();
  const double inner = static_cast<double>(layout.rows.length()) / q; // of a weight's block
  const double outer = static_cast<double>(layout.columns) / r;
  // Elements of the columns of X that one weight block is multiplied with, and of one block each
  // of X, Y and W.
  const double met = static_cast<double>(rows) * inner;
  const double x = met * q / r;
  const double y = static_cast<double>(rows) * outer;
  const double w = inner * outer;
  // A panel counts once, as it is read; a part of a result counts twice, as it is written and read.
  switch (form) {
    case Form::kAB:
      return q * (met + 2 * y) < (r - 1) * x + (q - 1) * w;
    case Form::kABt:
      return q * (y + 2 * met) < (q - 1) * w + (r - 1) * 2 * x;
    case Form::kAtB:
      return q * (met + y) < (r - 1) * x + (q - 1) * 2 * w;
    default:
      return false;
  }
}

bool gradients_are_one_exchange(const Mesh& mesh, std::int64_t rows, const WeightLayout& layout) {
  return stationary_weights_pay(mesh, Form::kABt, rows, layout) &&
         stationary_weights_pay(mesh, Form::kAtB, rows, layout);
}

void multiply_stationary(
    const Mesh& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout,
    const at::Tensor& out,
    bool accumulate) {
  WindowRows& rows = *mesh.exchange().rows();
  const bool of_weight = form == Form::kAtB;
  auto job = job_of(kStays + static_cast<std::int64_t>(form), a, of_weight ? out : b, layout);
  if (of_weight) {
    job.x = a;
    job.y = b;
    rows.begin(job);
    multiply_weight_gradient(rows.rows_of_x(), rows.rows_of_y(), layout, out, accumulate);
    rows.finish();
    return;
  }
  TESSERA_CHECK(!accumulate, "only a weight's gradient grows");
  const bool forward = form == Form::kAB;
  (forward ? job.x : job.y) = a;
  job.result = forward ? WindowRows::Result::kY : WindowRows::Result::kX;
  job.out = out;
  const at::Tensor w = in_order(b, layout);
  rows.begin(job);
  if (forward) {
    gemm(rows.part(), rows.rows_of_x(), w, false);
  } else {
    gemm(rows.part(), rows.rows_of_y(), w.t(), false);
  }
  rows.send();
  rows.finish();
}

void gradients_stationary(
    const Mesh& mesh,
    const at::Tensor& x,
    const at::Tensor& y,
    const at::Tensor& weight,
    const WeightLayout& layout,
    const at::Tensor& of_x,
    const at::Tensor& of_weight,
    bool accumulate) {
  WindowRows& rows = *mesh.exchange().rows();
  auto job = job_of(kBothGradients, y, weight, layout);
  job.x = x;
  job.y = y;
  job.out = of_x;
  job.result = WindowRows::Result::kX;
  rows.begin(job);
  const at::Tensor all_y = rows.rows_of_y();
  gemm(rows.part(), all_y, in_order(weight, layout).t(), false);
  rows.send();
  multiply_weight_gradient(rows.rows_of_x(), all_y, layout, of_weight, accumulate);
  rows.finish();
}

} // namespace tessera::nn::summa
