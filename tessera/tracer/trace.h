#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include "tessera/graph/model_graph.h"
#include "tessera/tracer/member_read.h"

namespace tessera::tracer {

struct TraceOptions {
  /// Measure the wall time of each module's calls, children included. The
  /// forward then runs once before, so that first-use costs are not counted.
  bool measure_seconds = false;
  /// Count the bytes of the tensors that each module's calls return.
  bool measure_memory = true;
  std::string name = {}; // ModelGraph::name
  /// Where a module keeps something in a member, run once more and refuse state that the first pass
  /// has changed.
  bool refuse_carried_state = false;
};

/// Runs one forward pass and writes down which modules it called, in which
/// order. `run` calls the model on one microbatch; it runs without gradients,
/// and the model is left as it was: buffers, random state, no graph, and what
/// operators change in place (members that it assigns are not put back). Should the
/// root be no interceptable module, `run` itself counts as its call.
///
/// Works on meta parameters (and inputs) too: nothing is computed, only shapes
/// are followed. Then inputs that have data stand for their shape, and an
/// operator without meta kernel is run on the CPU on zeros (meta_call.h).
///
/// Throws: ConfigError when seconds are asked of meta tensors, when an operator
/// reads numbers of a meta tensor (names operator and module), or when the
/// forward changes a parameter in place. What `run` throws passes through.
/// Threads: the calling thread runs the forward. Not collective.
/// Source: Karakus et al. 2021, appendix C.1.
graph::ModelGraph
trace(torch::nn::Module& root, const std::function<void()>& run, const TraceOptions& options = {});

/// One of several models that one run may call.
struct RunModel {
  torch::nn::Module* root = nullptr;
  std::string name; // ModelGraph::name
};
struct RunTrace {
  graph::ModelGraph graph;
  bool called = false; // `run` called one of the model's interceptable modules
  /// The modules that keep something in a member which is no registered buffer, for messages:
  /// "'encoder.cell' (Cell)". Microbatches that take turns would share it.
  std::vector<std::string> keeps_state = {};
  /// Members of a module that the step function or other modules read. They find them only where
  /// they run on the module's own rank.
  std::vector<MemberRead> member_reads = {};
};

/// The same for a run that may call several models, which share no module: one
/// graph for each, with the order of that model's own calls. Calls of modules
/// of no listed model go to the interceptor that was current before. What `run`
/// returns is looked at with `refuse_carried_state` only.
/// `options.name` is not used. Threads: as `trace`.
/// Throws: as `trace`; UserError with `refuse_carried_state`.
std::vector<RunTrace> trace_models(
    const std::vector<RunModel>& models,
    const std::function<c10::IValue()>& run,
    const TraceOptions& options = {});

/// Whether this thread is inside the forward of a trace.
bool is_tracing();

} // namespace tessera::tracer
