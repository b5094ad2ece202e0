#include "tessera/tracer/trace.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tessera/autograd/dispatch_mode.h"
#include "tessera/autograd/meta_call.h"
#include "tessera/base/error.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/tracer/describe.h"
#include "tessera/tracer/model_state.h"
#include "tessera/tracer/parameter_reads.h"
#include "tessera/tracer/returned_memory.h"
#include "tessera/tracer/state_watch.h"

namespace tessera::tracer {

namespace {

thread_local int t_traces = 0;

using Clock = std::chrono::steady_clock;

// Waits for the devices. Those other than the CPU run asynchronously, so a clock that is read
// without waiting would not count their work.
void wait_for(const std::vector<at::Device>& devices) {
  for (const at::Device device : devices) {
    if (!device.is_cpu() && !device.is_meta()) {
      c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
    }
  }
}

// Records the calls of one model in its graph.
class Recorder : public nn::Interceptor {
 public:
  Recorder(ModelParts& parts, std::vector<at::Device> devices, bool seconds, bool memory)
      : graph_(parts.graph),
        reads_(parts),
        devices_(std::move(devices)),
        seconds_(seconds),
        memory_(memory),
        outer_(nn::current_interceptor()),
        open_calls_(parts.modules.size(), 0) {
    for (std::size_t i = 0; i < parts.modules.size(); ++i) {
      node_of_.emplace(parts.modules[i], static_cast<int>(i));
    }
  }

  bool wants(const torch::nn::Module& module) override {
    return node_of_.count(&module) != 0 || (outer_ != nullptr && outer_->wants(module));
  }

  int range_end(const torch::nn::Module& sequential, int first) override {
    const bool others = outer_ != nullptr && node_of_.count(&sequential) == 0;
    return others ? outer_->range_end(sequential, first) : first + 1;
  }

  c10::IValue call(
      torch::nn::Module& module,
      const nn::CallKey& key,
      const c10::IValue& args,
      int first,
      int last) override {
    if (node_of_.count(&module) == 0) {
      return outer_->call(module, key, args, first, last);
    }
    const auto run = [&] { return nn::find_invoker(key.hash)(module, args, first, last); };
    if (first >= 0) {
      return run(); // a part of a Sequential's call that was recorded already; its children follow
    }
    c10::IValue result;
    record(node_of_.at(&module), [&] {
      result = run();
      return std::vector{result};
    });
    return result;
  }

  /// Records an operator that the model runs; `run` executes it and leaves its results on the
  /// stack.
  void operate(
      const c10::OperatorHandle& op,
      torch::jit::Stack* stack,
      const std::function<void()>& run) {
    const int layer = reads_.before(op, *stack, path_.empty() ? -1 : path_.back());
    if (layer < 0) {
      run();
      return;
    }
    const std::size_t begin = stack->size() - op.schema().arguments().size();
    record(layer, [&] {
      run();
      return std::vector<c10::IValue>(
          stack->begin() + static_cast<std::ptrdiff_t>(begin), stack->end());
    });
  }

  Clock::time_point now() const {
    if (seconds_) {
      wait_for(devices_);
    }
    return Clock::now();
  }
  double seconds_since(Clock::time_point start) const {
    return seconds_ ? std::chrono::duration<double>(now() - start).count() : 0;
  }

  bool called() const {
    return calls_ > 0;
  }

  /// Ends the record. A root whose forward was called without its holder, so that no
  /// call was seen, counts as called once, first of all.
  void finish(double seconds) {
    graph::Module& root = graph_.modules[0];
    if (root.calls == 0) {
      for (graph::Module& entry : graph_.modules) {
        entry.first_call += entry.first_call >= 0 ? 1 : 0;
      }
      root.calls = 1;
      root.first_call = 0;
      root.forward_seconds = seconds;
    }
    graph_.traced = true;
    graph_.timed = seconds_;
  }

  /// Returns the innermost module that runs, for messages.
  std::string here() const {
    const graph::Module& entry = graph_.modules[path_.empty() ? 0 : path_.back()];
    return str("module ", entry.path.empty() ? "(root)" : entry.path, " (", entry.type, ")");
  }

 private:
  // Ends the call even if it throws, because a forward may catch what a child throws.
  class OpenCall {
   public:
    OpenCall(Recorder& recorder, int node) : recorder_(recorder) {
      recorder_.path_.push_back(node);
      ++recorder_.open_calls_[node];
    }
    ~OpenCall() {
      --recorder_.open_calls_[recorder_.path_.back()];
      recorder_.path_.pop_back();
    }

   private:
    Recorder& recorder_;
  };

  // Records one call of a node; `run` executes it and returns its results.
  template <typename Run>
  void record(int node, Run&& run) {
    graph::Module& entry = graph_.modules[node];
    if (entry.calls++ == 0) {
      entry.first_call = calls_;
    }
    ++calls_;
    const OpenCall open(*this, node);
    const auto start = now();
    const std::vector<c10::IValue> made = run();
    // Only the outermost call is counted, since it includes those that a module makes of itself.
    if (seconds_ && open_calls_[node] == 1) {
      entry.forward_seconds += seconds_since(start);
    }
    if (memory_) {
      const auto bytes = memory_of_results_.count(made);
      entry.returned_bytes += bytes.all;
      entry.activation_bytes += bytes.added;
    }
  }

  graph::ModelGraph& graph_;
  ParameterReads reads_;
  std::vector<at::Device> devices_;
  bool seconds_;
  bool memory_;
  ReturnedMemory memory_of_results_;
  nn::Interceptor* outer_; // of the other models of this run, or nullptr
  int calls_ = 0;
  std::unordered_map<const torch::nn::Module*, int> node_of_;
  std::vector<int> path_;
  std::vector<int> open_calls_; // by node
};

class TracingMode;
thread_local TracingMode* t_mode = nullptr;

// Intercepts every operator of the forward. If parameters are meta tensors, only shapes are
// followed. If one run traces several models, each has a mode, and inner modes call the outer ones.
class TracingMode : public DispatchMode {
 public:
  TracingMode(Recorder& recorder, StateWatch& watch, bool on_meta)
      : recorder_(recorder),
        watch_(watch),
        outer_(std::exchange(t_mode, this)),
        on_meta_(on_meta || (outer_ != nullptr && outer_->on_meta_)) {}
  ~TracingMode() override {
    t_mode = outer_;
  }
  TracingMode(const TracingMode&) = delete;
  TracingMode& operator=(const TracingMode&) = delete;

  void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    watch_.operate(op, stack, [&] { see(op, stack, [&] { run(op, stack); }); });
  }

 private:
  void
  see(const c10::OperatorHandle& op, torch::jit::Stack* stack, const std::function<void()>& run) {
    recorder_.operate(op, stack, [&] {
      if (outer_ != nullptr) {
        outer_->see(op, stack, run);
      } else {
        run();
      }
    });
  }

  void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    if (!on_meta_ || !takes_meta_tensor(op, *stack)) {
      call_plain(op, stack);
      return;
    }
    try {
      call_on_meta(op, stack);
    } catch (const ReadsNumbers& error) {
      throw ConfigError(
          str("trace: in ",
              recorder_.here(),
              " ",
              error.what(),
              ": the parameters are delayed, so there is nothing to read; "
              "trace with materialized parameters, or set skip_tracing: true"));
    }
  }

  Recorder& recorder_;
  StateWatch& watch_;
  TracingMode* outer_;
  bool on_meta_;
};

// Returns the devices of the model. The CPU is always the first, because its random state may be
// used whatever the device of the parameters is.
std::vector<at::Device> devices_of(torch::nn::Module& root) {
  std::vector<at::Device> devices{at::kCPU};
  for (const auto& list : {root.parameters(), root.buffers()}) {
    for (const at::Tensor& tensor : list) {
      if (tensor.defined() &&
          std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) {
        devices.push_back(tensor.device());
      }
    }
  }
  return devices;
}

// Marks this thread as tracing.
struct TracingMark {
  TracingMark() {
    ++t_traces;
  }
  ~TracingMark() {
    --t_traces;
  }
};

bool any_is_meta(const std::vector<at::Device>& devices) {
  return std::any_of(
      devices.begin(), devices.end(), [](at::Device device) { return device.is_meta(); });
}

void check_measurable(torch::nn::Module& root) {
  if (any_is_meta(devices_of(root))) {
    throw ConfigError(
        "trace: measure_seconds was asked for a model whose parameters are "
        "delayed (meta tensors): nothing is computed, so there is no time to "
        "measure; set measure_seconds to false or materialize the model");
  }
}

RunTrace trace_one(
    torch::nn::Module& root,
    StateWatch& watch,
    const std::function<void()>& run,
    const TraceOptions& options) {
  ModelParts parts = take_apart(root, options.name);
  const std::vector<at::Device> devices = devices_of(root);
  const TracingMark mark;
  const at::NoGradGuard no_grad;
  const ModelState state(root, devices);
  Recorder recorder(parts, devices, options.measure_seconds, options.measure_memory);
  RunTrace result;
  {
    const nn::InterceptorScope intercept(&recorder);
    TracingMode mode(recorder, watch, any_is_meta(devices));
    const DispatchScope scope(&mode);
    const auto start = recorder.now();
    run();
    result.called = recorder.called();
    recorder.finish(recorder.seconds_since(start));
  }
  state.check_parameters();
  result.graph = std::move(parts.graph);
  return result;
}

// Runs one pass over all models. Their recorders are nested, and each passes on the calls of
// modules that are not its model's.
std::vector<RunTrace> trace_pass(
    const std::vector<RunModel>& models,
    StateWatch& watch,
    const std::function<c10::IValue()>& run,
    const TraceOptions& options) {
  std::vector<RunTrace> traces(models.size());
  const std::function<void(std::size_t)> trace_from = [&](std::size_t i) {
    if (i == models.size()) {
      watch.observe(run, /*look=*/!options.measure_seconds); // looking would add to the seconds
      return;
    }
    TraceOptions own = options;
    own.name = models[i].name;
    traces[i] = trace_one(
        *models[i].root, watch, [&] { trace_from(i + 1); }, own);
  };
  trace_from(0);
  return traces;
}

} // namespace

graph::ModelGraph
trace(torch::nn::Module& root, const std::function<void()>& run, const TraceOptions& options) {
  const auto returns_nothing = [&]() -> c10::IValue {
    run();
    return {};
  };
  return trace_models({{&root, options.name}}, returns_nothing, options).front().graph;
}

std::vector<RunTrace> trace_models(
    const std::vector<RunModel>& models,
    const std::function<c10::IValue()>& run,
    const TraceOptions& options) {
  std::vector<torch::nn::Module*> roots;
  for (const RunModel& model : models) {
    roots.push_back(model.root);
    if (options.measure_seconds) {
      check_measurable(*model.root);
    }
  }
  StateWatch watch(roots);
  TraceOptions unmeasured = options;
  unmeasured.measure_seconds = false;
  std::vector<RunTrace> traces = trace_pass(models, watch, run, unmeasured);
  const std::uint64_t first_outcome = watch.outcome();
  if (options.measure_seconds) { // the first pass was the warm-up
    traces = trace_pass(models, watch, run, options);
  }
  if (options.refuse_carried_state && watch.found_any()) {
    trace_pass(models, watch, run, unmeasured);
  }
  std::vector<std::string> all;
  for (std::size_t i = 0; i < models.size(); ++i) {
    traces[i].keeps_state = watch.found(*models[i].root);
    traces[i].member_reads = watch.reads(*models[i].root);
    all.insert(all.end(), traces[i].keeps_state.begin(), traces[i].keeps_state.end());
  }
  if (options.refuse_carried_state && watch.outcome() != first_outcome && !all.empty()) {
    refuse_carried_state(all);
  }
  return traces;
}

bool is_tracing() {
  return t_traces > 0;
}

} // namespace tessera::tracer
