#pragma once

#include <string>
#include <vector>

#include "tessera/cost/cluster.h"
#include "tessera/cost/described_model.h"
#include "tessera/graph/model_graph.h"
#include "tessera/graph/operator_work.h"

namespace tessera::planner {

/// A model of which the forward was traced, once for one sample and once for
/// two. Work includes the loss.
struct TracedModel {
  graph::ModelGraph graph;
  graph::ForwardWork one_sample;
  graph::ForwardWork two_samples;
  std::string precision = "f32"; // or "bf16": parameters and activations
  int global_batch_size = 0;
};

/// What of a model can be placed on any pipeline rank: the children of its
/// outermost Sequential containers, in order of execution, but those that share
/// parameters with other parts. All else stays on pipeline rank 0.
/// Returns: indices into graph.modules.
std::vector<int> movable_modules(const graph::ModelGraph& graph);

/// The model as the planner prices it: layer 0 is what stays on pipeline rank 0
/// (named "", the root), every further layer one movable module under its path.
/// Seconds of every microbatch size that divides the global batch follow from
/// the measured speed of each kind of device in the cluster, or its data sheet.
///
/// Throws: ConfigError when a kind of device has neither; PlanError
/// when the traced forwards do not belong together.
cost::DescribedModel describe_traced(
    const TracedModel& model,
    const cost::Cluster& cluster);

} // namespace tessera::planner
