#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "tessera/graph/model_graph.h"

namespace tessera::tracer {

/// The graph of a model together with what its entries stand for.
struct ModelParts {
  graph::ModelGraph graph;
  std::vector<torch::nn::Module*> modules; // one for each graph.modules entry
  std::vector<at::Tensor> parameters; // one for each graph.parameters entry
};

/// Lists the modules whose calls can be intercepted (and the root, always), in
/// pre-order of registration, under the names of torch's named_modules; every
/// other module counts as part of the nearest listed ancestor. A module or a
/// parameter registered under several paths is listed once, under the first.
///
/// Two modules that hold one parameter tensor both name it. Parameters that
/// only share memory (views of one buffer) are different parameters.
///
/// Throws: ConfigError for a parameter whose type has no name.
/// Threads: any. Not collective. No forward is run (`skip_tracing`).
/// Source: Karakus et al. 2021, appendix C.2.
ModelParts take_apart(torch::nn::Module& root, const std::string& name);

/// The graph alone: traced = false, no order, no seconds, no activations.
graph::ModelGraph describe(torch::nn::Module& root, const std::string& name = "");

} // namespace tessera::tracer
