#pragma once

#include <torch/nn/module.h>

namespace tessera::half {

/// Makes the floating-point parameters and buffers of `module` and its children those of `type`,
/// in place: handles taken before stay valid, shared tensors stay shared, delayed ones delayed.
/// Gradients that are there are dropped. Not collective. Threads: one at a time for a module.
void convert(torch::nn::Module& module, at::ScalarType type);

} // namespace tessera::half
