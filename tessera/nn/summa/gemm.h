#pragma once

#include <ATen/ATen.h>

namespace tessera::nn::two_d {

/// x [..., n] as [rows, n], also where this rank has none of the columns.
inline at::Tensor as_matrix(const at::Tensor& x) {
  return x.dim() < 2 ? x.unsqueeze(0) : x.flatten(0, -2);
}

/// c = x y, or c += x y. Not collective. Threads: any.
inline void gemm(const at::Tensor& c, const at::Tensor& x, const at::Tensor& y, bool accumulate) {
  at::Tensor to = c;
  if (accumulate) {
    to.addmm_(x, y);
  } else {
    at::mm_out(to, x, y);
  }
}

} // namespace tessera::nn::two_d
