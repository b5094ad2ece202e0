#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::nn::two_d {

/// sum = the parts, in their order; `sum` may be one of them. In one pass where
/// all are contiguous. Not collective. Threads: any.
/// Throws: ShapeError for a dtype that cannot be multiplied.
void add_up(const std::vector<at::Tensor>& parts, const at::Tensor& sum);

} // namespace tessera::nn::two_d
