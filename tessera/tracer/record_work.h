#pragma once

#include <functional>

#include <torch/nn/module.h>

#include "tessera/graph/operator_work.h"

namespace tessera::tracer {

/// Runs one forward without gradients and writes down what every operator call
/// makes a device do. Modules are numbered as in `take_apart` of the same root.
/// Meta parameters and inputs work: only shapes are followed. Composite
/// operators (linear, softmax, layer_norm) are one call.
///
/// Throws: ConfigError when an operator reads numbers of a meta tensor (names
/// the operator). What `run` throws passes through.
/// Threads: the calling thread runs the forward. Not collective.
graph::ForwardWork record_work(torch::nn::Module& root, const std::function<void()>& run);

} // namespace tessera::tracer
