#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "tessera/graph/model_graph.h"

namespace tessera::tracer {

/// A parameter or buffer and the modules that hold it.
struct HeldTensor {
  at::Tensor tensor;
  std::string name; // first path under which it is found
  const torch::nn::Module* module; // the first that registered it
  int parameter; // index into graph.parameters; -1 for a buffer
  std::vector<int> nodes; // entries of graph.modules that hold it
};

/// The graph of a model together with the modules and tensors that its entries describe.
struct ModelParts {
  graph::ModelGraph graph;
  std::vector<torch::nn::Module*> modules; // one for each graph.modules entry
  std::vector<at::Tensor> parameters; // one for each graph.parameters entry
  std::vector<HeldTensor> tensors;
};

/// Lists the modules that can live on a rank of their own (nn::is_node, and the root, always), in
/// pre-order of registration, under the names of torch's named_modules; every other module counts
/// as part of the nearest listed ancestor, and is in graph.kept when it has parameters. A module or
/// a parameter registered under several paths is listed once, under the first.
///
/// Two modules that hold one parameter tensor both name it. Parameters that
/// only share memory (views of one buffer) are different parameters.
///
/// Throws: ConfigError for a parameter whose type has no name.
/// Threads: any. Not collective. No forward is run (`skip_tracing`).
/// Source: Karakus et al. 2021, appendix C.2.
ModelParts take_apart(torch::nn::Module& root, const std::string& name);

/// Returns the graph only: traced = false, no order, no seconds, no activations. Throws and threads
/// as take_apart.
graph::ModelGraph describe(torch::nn::Module& root, const std::string& name = "");

} // namespace tessera::tracer
