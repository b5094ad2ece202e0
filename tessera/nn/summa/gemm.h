#pragma once

#include <ATen/ATen.h>

namespace tessera::nn::summa {

/// Returns x [..., n] as a matrix [rows, n]; n may be 0 on this rank.
inline at::Tensor as_matrix(const at::Tensor& x) {
  return x.dim() < 2 ? x.unsqueeze(0) : x.flatten(0, -2);
}

/// Computes c = x y, or c += x y with `accumulate`, on this rank's own matrices.
/// Not collective. Threads: any.
inline void gemm(const at::Tensor& c, const at::Tensor& x, const at::Tensor& y, bool accumulate) {
  at::Tensor to = c;
  if (accumulate) {
    to.addmm_(x, y);
  } else {
    at::mm_out(to, x, y);
  }
}

} // namespace tessera::nn::summa
