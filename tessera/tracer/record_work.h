#pragma once

#include <functional>

#include <torch/nn/module.h>

#include "tessera/graph/operator_work.h"

namespace tessera::tracer {

/// Runs one forward without gradients and returns the work of every operator call.
/// Modules are numbered as in `take_apart` of the same root. Meta parameters and
/// inputs are allowed; only their shapes are followed. A composite operator (linear,
/// softmax, layer_norm) is one call. Buffers and random state are not restored.
///
/// Throws: ConfigError naming the operator when it reads numbers of a meta tensor.
/// Exceptions of `run` pass through.
/// Threads: the calling thread runs the forward. Not collective.
graph::ForwardWork record_work(torch::nn::Module& root, const std::function<void()>& run);

} // namespace tessera::tracer
