#pragma once

#include <ATen/ATen.h>

namespace tessera::nn::two_d {

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
