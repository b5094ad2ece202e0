#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/stack.h>

#include "tessera/graph/model_graph.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/tracer/describe.h"
#include "tessera/tracer/kept_memory.h"
#include "tessera/tracer/parameter_reads.h"
#include "tessera/tracer/returned_memory.h"

namespace tessera::tracer {

/// Records the calls of one model in its graph, while its forward runs on this thread. Calls of
/// modules that are not the model's go to the interceptor that was current before.
/// Threads: one. Not collective.
class Recorder : public nn::Interceptor {
 public:
  using Clock = std::chrono::steady_clock;

  /// `seconds`, `memory`: TraceOptions::measure_seconds and measure_memory; `kept`, where kept
  /// memory is measured, takes the place of `memory` and must outlive this.
  Recorder(
      ModelParts& parts,
      std::vector<at::Device> devices,
      bool seconds,
      bool memory,
      KeptMemory* kept);

  bool wants(const torch::nn::Module& module) override;
  int range_end(const torch::nn::Module& sequential, int first) override;
  c10::IValue call(
      torch::nn::Module& module,
      const nn::CallKey& key,
      const c10::IValue& args,
      int first,
      int last) override;

  /// Records an operator that the model runs; `run` executes it and leaves its results on the
  /// stack.
  void operate(
      const c10::OperatorHandle& op,
      torch::jit::Stack* stack,
      const std::function<void()>& run);

  /// The clock, once the devices have done what they were given; 0 seconds if none are measured.
  Clock::time_point now() const;
  double seconds_since(Clock::time_point start) const;

  /// Returns whether any module of the model was called.
  bool called() const {
    return calls_ > 0;
  }
  /// Ends the record. A root whose forward was called without its holder, so that no
  /// call was seen, counts as called once, first of all.
  void finish(double seconds);
  /// Returns the innermost module that runs, for messages.
  std::string here() const;

 private:
  class OpenCall;
  using Run = std::function<std::vector<c10::IValue>()>;
  void record(int node, const Run& run);

  graph::ModelGraph& graph_;
  ParameterReads reads_;
  std::vector<at::Device> devices_;
  bool seconds_;
  bool memory_;
  ReturnedMemory memory_of_results_;
  KeptMemory* kept_; // nullptr: not measured
  nn::Interceptor* outer_; // of the other models of this run, or nullptr
  int calls_ = 0;
  std::unordered_map<const torch::nn::Module*, int> node_of_;
  std::vector<int> path_; // of the calls that run, the innermost last
  std::vector<int> open_calls_; // by node
};

} // namespace tessera::tracer
