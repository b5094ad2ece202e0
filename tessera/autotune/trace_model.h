#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "tessera/planner/traced_model.h"

namespace tessera::autotune {

/// A model and its loss, built to be traced.
struct BuiltModel {
  std::shared_ptr<torch::nn::Module> root;
  /// Returns what runs forward and loss once, on so many samples. Valid as long as the BuiltModel.
  std::function<std::function<void()>(std::int64_t samples)> forward;
};

/// A model that can be built anew: tensor parallelism replaces its modules, so that every way to
/// divide it takes a model of its own.
struct ModelSource {
  std::string name;
  std::function<BuiltModel()> build;
};

struct TraceRequest {
  cost::Precision precision = cost::Precision::kFull;
  int global_batch_size = 0;
  /// Tensor-parallel degrees that the model is also traced at, in every way that the runtime can
  /// divide it. Only marked modules are divided.
  std::vector<int> tensor_degrees = {};
};

/// Returns the degrees of tensor parallelism that divide the devices: up to those of the largest
/// node, since its traffic is too much for a network, and on clusters of a few devices up to all.
std::vector<int> tensor_degrees_of(const cost::Cluster& cluster);

/// Traces forward and loss for one sample and for two, whole and divided. No weight is allocated:
/// the model is built in a scope of delayed initialisation and only shapes are followed. Random
/// numbers of the script are left as they were.
/// Not collective. Threads: the calling thread runs the forward.
/// Throws: ConfigError when the forward reads numbers of a tensor, as `tracer::trace`. What the
/// model throws passes through.
planner::ModelTrace trace_model(const ModelSource& source, const TraceRequest& request);

} // namespace tessera::autotune
