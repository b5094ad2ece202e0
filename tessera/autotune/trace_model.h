#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "tessera/planner/traced_model.h"

namespace tessera::autotune {

/// A model and its loss, built to be traced.
struct BuiltModel {
  std::shared_ptr<torch::nn::Module> root;
  /// Returns a function that runs forward and loss once, on `samples` samples. It is valid as long
  /// as the BuiltModel.
  std::function<std::function<void()>(std::int64_t samples)> forward;
};

/// A model that can be built several times: tensor parallelism replaces modules in place, so every
/// way to divide the model needs a model of its own.
struct ModelSource {
  std::string name;
  std::function<BuiltModel()> build;
};

struct TraceRequest {
  cost::Precision precision = cost::Precision::kFull;
  int global_batch_size = 0;
  /// Tensor-parallel degrees at which the model is traced too, in every way in which the runtime
  /// can divide it. Only marked modules are divided.
  std::vector<int> tensor_degrees = {};
  /// Paths of marked modules that stay whole in every one of them.
  std::set<std::string> whole_modules = {};
};

/// Returns the degrees of tensor parallelism, 2 or more, that divide the number of devices. They go
/// up to the devices of the largest node, because the traffic is too much for a network; on
/// clusters of at most 8 devices up to all of them.
std::vector<int> tensor_degrees_of(const cost::Cluster& cluster);

/// Traces forward and loss for one sample and for two, of the whole model and of every way to
/// divide it. No weight is allocated, because the model is built in a scope of delayed
/// initialisation and only shapes are followed. The script's random numbers are left as they were.
/// Not collective. Threads: the calling thread runs the forward.
/// Throws: ConfigError when the forward reads numbers of a tensor, as `tracer::trace`. Exceptions
/// of the model pass through.
planner::ModelTrace trace_model(const ModelSource& source, const TraceRequest& request);

} // namespace tessera::autotune
