#include "tessera/tracer/trace.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/autograd/dispatch_mode.h"
#include "tessera/autograd/meta_call.h"
#include "tessera/base/error.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/tracer/describe.h"
#include "tessera/tracer/kept_memory.h"
#include "tessera/tracer/model_state.h"
#include "tessera/tracer/recorder.h"
#include "tessera/tracer/state_watch.h"

namespace tessera::tracer {

namespace {

thread_local int t_traces = 0;

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

void check_measurable(torch::nn::Module& root, const TraceOptions& options) {
  if ((options.measure_seconds || options.measure_kept_memory) && any_is_meta(devices_of(root))) {
    const std::string option = options.measure_seconds ? "measure_seconds" : "measure_kept_memory";
    throw ConfigError(
        str("trace: ",
            option,
            " was asked for a model whose parameters are delayed (meta tensors): nothing is "
            "computed, so there is nothing to measure; set it to false or materialize the model"));
  }
}

RunTrace trace_one(
    torch::nn::Module& root,
    StateWatch& watch,
    const std::function<void()>& run,
    const TraceOptions& options,
    KeptMemory* kept) {
  ModelParts parts = take_apart(root, options.name);
  const std::vector<at::Device> devices = devices_of(root);
  const TracingMark mark;
  const at::AutoGradMode gradients(kept != nullptr);
  const ModelState state(root, devices);
  Recorder recorder(parts, devices, options.measure_seconds, options.measure_memory, kept);
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
  result.changed_buffers = state.changed_buffers();
  result.graph = std::move(parts.graph);
  return result;
}

// Runs one pass over all models. Their recorders are nested, and each passes on the calls of
// modules that are not its model's.
std::vector<RunTrace> trace_pass(
    const std::vector<RunModel>& models,
    StateWatch& watch,
    const std::function<c10::IValue()>& run,
    const TraceOptions& options,
    KeptMemory* kept = nullptr) {
  std::vector<RunTrace> traces(models.size());
  const std::function<void(std::size_t)> trace_from = [&](std::size_t i) {
    if (i == models.size()) {
      watch.observe(
          run, /*look=*/!options.measure_seconds && kept == nullptr); // looking would add to both
      return;
    }
    TraceOptions own = options;
    own.name = models[i].name;
    traces[i] = trace_one(
        *models[i].root, watch, [&] { trace_from(i + 1); }, own, kept);
  };
  trace_from(0);
  return traces;
}

void measure_kept_memory(
    const std::vector<RunModel>& models,
    StateWatch& watch,
    const std::function<c10::IValue()>& run,
    const TraceOptions& options,
    std::vector<RunTrace>& traces) {
  KeptMemory kept;
  const std::vector<RunTrace> measured = trace_pass(models, watch, run, options, &kept);
  for (std::size_t m = 0; m < traces.size(); ++m) {
    for (std::size_t i = 0; i < traces[m].graph.modules.size(); ++i) {
      traces[m].graph.modules[i].activation_bytes = measured[m].graph.modules[i].activation_bytes;
    }
  }
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
    check_measurable(*model.root, options);
  }
  StateWatch watch(roots);
  TraceOptions unmeasured = options;
  unmeasured.measure_seconds = false;
  std::vector<RunTrace> traces = trace_pass(models, watch, run, unmeasured);
  const std::uint64_t first_outcome = watch.outcome();
  if (options.measure_seconds) { // the first pass was the warm-up
    traces = trace_pass(models, watch, run, options);
  }
  if (options.measure_kept_memory) {
    measure_kept_memory(models, watch, run, unmeasured, traces);
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

} // namespace tessera::tracer
