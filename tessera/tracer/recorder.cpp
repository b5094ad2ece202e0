#include "tessera/tracer/recorder.h"

#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "tessera/base/error.h"

namespace tessera::tracer {

namespace {

// Waits for the devices. Those other than the CPU run asynchronously, so a clock that is read
// without waiting would not count their work.
void wait_for(const std::vector<at::Device>& devices) {
  for (const at::Device device : devices) {
    if (!device.is_cpu() && !device.is_meta()) {
      c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
    }
  }
}

} // namespace

// Ends the call even if it throws, because a forward may catch what a child throws.
class Recorder::OpenCall {
 public:
  OpenCall(Recorder& recorder, int node) : recorder_(recorder) {
    recorder_.path_.push_back(node);
    ++recorder_.open_calls_[node];
    if (recorder_.kept_ != nullptr) {
      recorder_.kept_->begin_call();
    }
  }
  ~OpenCall() {
    if (recorder_.kept_ != nullptr && !measured_) {
      recorder_.kept_->abandon_call();
    }
    --recorder_.open_calls_[recorder_.path_.back()];
    recorder_.path_.pop_back();
  }
  OpenCall(const OpenCall&) = delete;
  OpenCall& operator=(const OpenCall&) = delete;

  std::int64_t kept_bytes() {
    measured_ = true;
    return recorder_.kept_->end_call();
  }

 private:
  Recorder& recorder_;
  bool measured_ = false;
};

// Records one call of a node; `run` executes it and returns its results.
void Recorder::record(int node, const Run& run) {
  graph::Module& entry = graph_.modules[node];
  if (entry.calls++ == 0) {
    entry.first_call = calls_;
  }
  ++calls_;
  OpenCall open(*this, node);
  const auto start = now();
  const std::vector<c10::IValue> made = run();
  // Only the outermost call is counted, since it includes those that a module makes of itself.
  if (seconds_ && open_calls_[node] == 1) {
    entry.forward_seconds += seconds_since(start);
  }
  if (kept_ != nullptr) {
    entry.activation_bytes += open.kept_bytes();
  } else if (memory_) {
    const auto bytes = memory_of_results_.count(made);
    entry.returned_bytes += bytes.all;
    entry.activation_bytes += bytes.added;
  }
}

Recorder::Recorder(
    ModelParts& parts,
    std::vector<at::Device> devices,
    bool seconds,
    bool memory,
    KeptMemory* kept)
    : graph_(parts.graph),
      reads_(parts),
      devices_(std::move(devices)),
      seconds_(seconds),
      memory_(memory),
      kept_(kept),
      outer_(nn::current_interceptor()),
      open_calls_(parts.modules.size(), 0) {
  for (std::size_t i = 0; i < parts.modules.size(); ++i) {
    node_of_.emplace(parts.modules[i], static_cast<int>(i));
  }
}

bool Recorder::wants(const torch::nn::Module& module) {
  return node_of_.count(&module) != 0 || (outer_ != nullptr && outer_->wants(module));
}

int Recorder::range_end(const torch::nn::Module& sequential, int first) {
  const bool others = outer_ != nullptr && node_of_.count(&sequential) == 0;
  return others ? outer_->range_end(sequential, first) : first + 1;
}

c10::IValue Recorder::call(
    torch::nn::Module& module,
    const nn::CallKey& key,
    const c10::IValue& args,
    int first,
    int last) {
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
  return kept_ == nullptr ? result : kept_->without_history(result);
}

void Recorder::operate(
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
  for (std::size_t i = begin; kept_ != nullptr && i < stack->size(); ++i) {
    (*stack)[i] = kept_->without_history((*stack)[i]);
  }
}

Recorder::Clock::time_point Recorder::now() const {
  if (seconds_) {
    wait_for(devices_);
  }
  return Clock::now();
}

double Recorder::seconds_since(Clock::time_point start) const {
  return seconds_ ? std::chrono::duration<double>(now() - start).count() : 0;
}

void Recorder::finish(double seconds) {
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

std::string Recorder::here() const {
  const graph::Module& entry = graph_.modules[path_.empty() ? 0 : path_.back()];
  return str("module ", entry.path.empty() ? "(root)" : entry.path, " (", entry.type, ")");
}

} // namespace tessera::tracer
