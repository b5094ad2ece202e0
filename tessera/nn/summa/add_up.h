#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::nn::summa {

/// Sets `sum` to the sum of `parts`, of which it may be one, added in one pass in the order of
/// `parts`. Shapes: all equal. Not collective. Threads: any. Cost: a copy of each that is not
/// contiguous. Throws: ShapeError for a dtype that sum_type() does not know.
void add_up(const std::vector<at::Tensor>& parts, const at::Tensor& sum);

} // namespace tessera::nn::summa
