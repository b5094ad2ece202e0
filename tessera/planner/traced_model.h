#pragma once

#include <set>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/cost/cluster.h"
#include "tessera/cost/described_model.h"
#include "tessera/graph/model_graph.h"
#include "tessera/graph/operator_work.h"

namespace tessera::planner {

/// A traced model as the first rank of a tensor-parallel group holds it: its
/// operators with the collectives that run among them.
struct DivisionTrace {
  cost::TensorWay way;
  /// Samples of the group's microbatch in the first trace, the least there can
  /// be: one of every rank, or of the common ones one for every part.
  int samples = 1;
  graph::ModelGraph graph; // of the least microbatch
  graph::ForwardWork least;
  graph::ForwardWork twice;
  /// Parameters, by name, whose gradients are averaged over the group's ranks.
  std::set<std::string> whole;
};

/// A model of which the forward was traced, once for one sample and once for
/// two. Work includes the loss.
struct ModelTrace {
  graph::ModelGraph graph;
  graph::ForwardWork one_sample;
  graph::ForwardWork two_samples;
  cost::Precision precision = cost::Precision::kFull;
  int global_batch_size = 0;
  std::vector<DivisionTrace> divisions = {};
};

/// A model was to be priced on a kind of device that has neither a measured speed nor a data sheet.
class UnmeasuredDevice : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// What of a model can be placed on any pipeline rank: the children of its
/// outermost Sequential containers, in order of execution, but those that share
/// parameters with other parts. All else stays on pipeline rank 0.
/// Returns: indices into graph.modules.
std::vector<int> movable_modules(const graph::ModelGraph& graph);

/// The model as the planner prices it: layer 0 is what stays on pipeline rank 0
/// (named "", the root), every further layer one movable module under its path.
/// Divisions whose movable modules are others than the whole model's are left
/// out. Seconds of every microbatch size that divides the global batch follow
/// from the measured speed of each kind of device in the cluster, or its data
/// sheet.
///
/// Throws: UnmeasuredDevice when a kind of device has neither; PlanError
/// when the traced forwards do not belong together.
cost::DescribedModel describe_traced(const ModelTrace& model, const cost::Cluster& cluster);

} // namespace tessera::planner
