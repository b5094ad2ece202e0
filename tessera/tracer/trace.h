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
  /// Measures the wall time of each module's calls, children included. The
  /// forward then runs once before, so that first-use costs are not counted.
  bool measure_seconds = false;
  /// Counts the bytes of the tensors that each module's calls return.
  bool measure_memory = true;
  /// Measure the bytes that each module's calls keep for their backward, in place of the estimate
  /// from what they return. The forward then runs once more, with gradients.
  bool measure_kept_memory = false;
  std::string name = {}; // ModelGraph::name
  /// If a module keeps state in a member, runs the pass once more and refuses the model if the two
  /// passes differ.
  bool refuse_carried_state = false;
};

/// Runs one forward pass and records which modules it calls, in which order. `run`
/// calls the model on one microbatch. It runs without gradients (but for
/// measure_kept_memory), and the model is
/// left as it was: buffers, random state, and tensors that operators change in place
/// are restored; members that a forward assigns are not. If the root is no
/// interceptable module, `run` itself counts as its call.
///
/// Meta parameters and inputs are allowed: nothing is computed, only shapes are
/// followed. Inputs with data then count by their shape only, and an operator
/// without a meta kernel runs on the CPU on zeros (meta_call.h).
///
/// Throws: ConfigError for measure_seconds and
/// measure_kept_memory with meta tensors, for an operator that
/// reads numbers of a meta tensor (it names operator and module), and for a forward
/// that changes a parameter in place. Exceptions of `run` pass through.
/// Threads: the calling thread runs the forward. Not collective.
/// Source: Karakus et al. 2021, appendix C.1.
graph::ModelGraph
trace(torch::nn::Module& root, const std::function<void()>& run, const TraceOptions& options = {});

/// One of several models that one run may call.
struct RunModel {
  torch::nn::Module* root = nullptr;
  std::string name; // ModelGraph::name
};
/// What was recorded of one model.
struct RunTrace {
  graph::ModelGraph graph;
  bool called = false; // whether `run` called one of the model's interceptable modules
  /// The modules that keep state in a member which is no registered buffer, for messages:
  /// "'encoder.cell' (Cell)". Interleaved microbatches would share that state.
  std::vector<std::string> keeps_state = {};
  /// Names of the model's buffers of floating-point numbers that the run changed.
  std::vector<std::string> changed_buffers = {};
  /// Members of a module that the step function or other modules read. These must run on the
  /// module's own rank.
  std::vector<MemberRead> member_reads = {};
};

/// Does the same for a run that may call several models, which share no module. Returns
/// one graph for each, with the order of that model's own calls. Calls of modules of
/// no listed model go to the interceptor that was current before. What `run` returns
/// matters for `refuse_carried_state` only. `options.name` is not used.
/// Threads: as `trace`. Not collective.
/// Throws: as `trace`; UserError with `refuse_carried_state`.
std::vector<RunTrace> trace_models(
    const std::vector<RunModel>& models,
    const std::function<c10::IValue()>& run,
    const TraceOptions& options = {});

} // namespace tessera::tracer
