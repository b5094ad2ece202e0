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

/// The trace of a model on the first rank of a tensor-parallel group: its operators
/// and the collectives among them.
struct DivisionTrace {
  cost::TensorWay way;
  /// Samples of the group's least possible microbatch, which the first trace used:
  /// one for each rank, or as many as the common samples are divided into.
  int samples = 1;
  graph::ModelGraph graph; // at the least microbatch
  graph::ForwardWork least;
  graph::ForwardWork twice;
  /// Names of the parameters that every rank holds whole and uses with its own samples;
  /// their gradients are averaged over the group.
  std::set<std::string> whole;
};

/// The traces of a model's forward, once with one sample and once with two. The
/// work includes the loss.
struct ModelTrace {
  graph::ModelGraph graph;
  graph::ForwardWork one_sample;
  graph::ForwardWork two_samples;
  cost::Precision precision = cost::Precision::kFull;
  int global_batch_size = 0;
  std::vector<DivisionTrace> divisions = {};
};

/// The error that a device of the cluster has neither a measured speed nor a data sheet, so that
/// no model can be priced on it.
class UnmeasuredDevice : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// Returns the modules that can be placed on any pipeline rank, as indices into
/// graph.modules in order of execution: the children of the outermost Sequential
/// containers that run once and share no parameters with other parts of the
/// model. Everything else stays on pipeline rank 0.
std::vector<int> movable_modules(const graph::ModelGraph& graph);

/// Returns the model as the planner prices it. Layer 0 (named "", the root) is what
/// stays on pipeline rank 0; every further layer is one movable module, named by its
/// path. Divisions with another number of movable modules than the whole model are
/// left out. The seconds of every microbatch size that divides the global batch
/// follow from the measured speed of each kind of device in the cluster, or from
/// its data sheet.
///
/// Throws: UnmeasuredDevice when a kind of device has neither; PlanError
/// when the traced forwards do not belong together.
cost::DescribedModel describe_traced(const ModelTrace& model, const cost::Cluster& cluster);

} // namespace tessera::planner
