// Partitions models in the first step that calls them: which models, from what
// trace, and the agreement of all ranks on it.
#include <algorithm>
#include <cstdio>

#include "tessera/base/error.h"
#include "tessera/runtime/error_text.h"
#include "tessera/tensor/value.h"
#include "tessera/train/engine.h"
#include "tessera/train/model_core.h"
#include "tessera/train/step_failure.h"

namespace tessera::train {

namespace {

// While the step function is traced: `model.backward` does nothing.
class TracingFlag {
 public:
  explicit TracingFlag(bool& in_step) : in_step_(in_step) {
    session().tracing = in_step_ = true;
  }
  ~TracingFlag() {
    session().tracing = in_step_ = false;
  }
  TracingFlag(const TracingFlag&) = delete;
  TracingFlag& operator=(const TracingFlag&) = delete;

 private:
  bool& in_step_;
};

// Buffers as they were before a forward that must leave no trace.
class KeptBuffers {
 public:
  explicit KeptBuffers(const std::vector<ModelCore*>& models) {
    for (const ModelCore* model : models) {
      for (const at::Tensor& buffer : model->root()->buffers()) {
        if (buffer.defined() && buffer.numel() > 0 && !buffer.is_meta()) {
          kept_.emplace_back(buffer, buffer.detach().clone());
        }
      }
    }
  }
  ~KeptBuffers() {
    const at::NoGradGuard no_grad;
    for (auto& [buffer, value] : kept_) {
      buffer.copy_(value);
    }
  }
  KeptBuffers(const KeptBuffers&) = delete;
  KeptBuffers& operator=(const KeptBuffers&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> kept_;
};

} // namespace

void StepEngine::note_call(const ModelCore& model) {
  if (session().tracing) {
    called_.insert(&model);
  } else {
    directory_.check_not_waiting(*model.root());
  }
}

void StepEngine::ensure_partitioned(const StepCall& call, const Run& run) {
  partition_waiting(call, run);
  for (ModelCore* model : models_) {
    if (model->partitioned()) {
      model->complete_partition();
    }
  }
}

void StepEngine::partition_whole(ModelCore& model) {
  place({&model}, agree([&](bool&) {
          return std::vector<std::string>{plans::to_json(model.decide({}))};
        }));
}

// All ranks choose the same models and the same way, from what all of them know.
void StepEngine::partition_waiting(const StepCall& call, const Run& run) {
  const Config& config = session().config;
  const bool traces = config.auto_partition && !config.skip_tracing && !config.load_partition;
  std::set<int>& passed_over = passed_over_[call.function];
  std::vector<ModelCore*> traced;
  std::vector<ModelCore*> described;
  bool served = false; // some model is on several ranks already
  bool delayed = false;
  for (ModelCore* model : models_) {
    if (model->partitioned()) {
      served = true;
    } else if (traces && !passed_over.contains(model->number())) {
      traced.push_back(model);
      delayed = delayed || model->has_delayed();
    } else {
      described.push_back(model);
    }
  }
  if (delayed && (served || !described.empty())) {
    // Modules on other ranks compute; they cannot follow shapes alone.
    described.insert(described.end(), traced.begin(), traced.end());
    traced.clear();
  }
  if (!described.empty()) {
    place(described, agree([&](bool&) {
            std::vector<std::string> plans;
            for (ModelCore* model : described) {
              plans.push_back(plans::to_json(model->decide({})));
              if (passed_over.contains(model->number())) {
                std::fprintf(
                    stderr,
                    "tessera: model '%s' is partitioned from its description, because the first "
                    "call of this step function did not call it\n",
                    model->label().c_str());
              }
            }
            return plans;
          }));
    served = true;
  }
  if (traced.empty()) {
    return;
  }
  std::vector<tracer::RunTrace> traces_of_models;
  called_.clear();
  if (served) {
    traces_of_models = trace_on_pipeline(traced, call, run);
  }
  place(traced, agree([&](bool& tracing) {
          if (!served) {
            traces_of_models = trace(traced, [&](int microbatch) {
              tracing = true;
              c10::IValue result = run(microbatch);
              tracing = false;
              return result;
            });
          }
          std::vector<std::string> plans;
          for (std::size_t i = 0; i < traced.size(); ++i) {
            const bool called = traces_of_models[i].called || called_.contains(traced[i]);
            plans.push_back(
                called ? plans::to_json(traced[i]->decide(std::move(traces_of_models[i].graph)))
                       : std::string());
          }
          return plans;
        }));
  for (const ModelCore* model : traced) {
    if (!model->partitioned()) {
      passed_over.insert(model->number());
    }
  }
}

// An empty plan: the model stays as it is.
void StepEngine::place(
    const std::vector<ModelCore*>& models,
    const std::vector<std::string>& plans) {
  for (std::size_t i = 0; i < models.size(); ++i) {
    if (!plans[i].empty()) {
      models[i]->place(plans::plan_from_json(plans[i]));
    }
  }
}

// Rank 0 decides for all; an error there is an error on every rank. `decide`
// sets its argument while user code runs.
std::vector<std::string> StepEngine::agree(
    const std::function<std::vector<std::string>(bool&)>& decide) {
  Session& s = session();
  std::vector<std::string> plans;
  std::string problem;
  bool tracing = false;
  if (s.world->rank() == 0) {
    try {
      plans = decide(tracing);
    } catch (...) {
      problem = runtime::error_text(
          std::current_exception(),
          0,
          tracing ? "the step function, microbatch 0, while it is traced"
                  : "partitioning the model");
      if (tracing && problem.find("does not require grad") != std::string::npos) {
        problem +=
            "\nThe tracing pass runs without gradients. Write model.backward(loss) in the place of "
            "loss.backward(); put other code that needs gradients, such as torch::autograd::grad, "
            "behind if (!tessera::is_tracing()), or write \"skip_tracing\": true.";
      }
    }
  }
  const auto [text, in_trace, agreed] =
      unpack<std::tuple<std::string, bool, std::vector<std::string>>>(comm::broadcast_object(
          *s.world, s.group(Group::kWorld), pack(std::make_tuple(problem, tracing, plans)), 0));
  if (!text.empty() && in_trace) {
    throw UserError(text);
  }
  if (!text.empty()) {
    throw PlanError(text);
  }
  return agreed;
}

std::vector<tracer::RunTrace> StepEngine::trace(
    const std::vector<ModelCore*>& models,
    const Run& run) {
  std::vector<tracer::RunModel> roots;
  for (const ModelCore* model : models) {
    roots.push_back({model->root().get(), model->name()});
  }
  // Rank 0 is alone here: distributed modules only shape what they exchange.
  nn::TensorParallel alone_of_group = nn::tensor_parallel();
  alone_of_group.shapes_only = true;
  const nn::TensorParallelScope scope(alone_of_group);
  tracer::TraceOptions options;
  options.measure_seconds = session().config.trace_execution_times;
  const TracingFlag flag(in_step_);
  return tracer::trace_models(
      roots, [&] { run(0); }, options);
}

// Some models are on several ranks already, so their ranks take part: a step
// whose first microbatch runs forward only, while the others return at once.
// The models to trace are still whole on every rank and run beside the step
// function. Every replica does it, since modules may hold collectives; rank 0
// alone writes down what it sees.
std::vector<tracer::RunTrace> StepEngine::trace_on_pipeline(
    const std::vector<ModelCore*>& models,
    const StepCall& call,
    const Run& run) {
  Session& s = session();
  std::vector<tracer::RunTrace> traces(models.size());
  std::vector<tracer::RunModel> roots;
  for (const ModelCore* model : models) {
    roots.push_back({model->root().get(), model->name()});
  }
  tracer::TraceOptions options;
  options.measure_seconds = s.config.trace_execution_times;
  runtime::StepWork work;
  work.step = step_;
  work.serial = ++steps_run_;
  work.microbatches = call.microbatches;
  work.run = [&](int microbatch) -> c10::IValue {
    if (microbatch > 0) {
      return {};
    }
    const at::NoGradGuard no_grad;
    if (s.world->rank() == 0) {
      traces = tracer::trace_models(
          roots, [&] { run(0); }, options);
    } else {
      for (int i = 0; i < (options.measure_seconds ? 2 : 1); ++i) {
        run(0); // as often as rank 0, whose modules may hold collectives
      }
    }
    return {};
  };
  std::string problem;
  {
    const KeptBuffers buffers(models_);
    const TracingFlag flag(in_step_);
    try {
      server_->run_step(work);
    } catch (const UserError& error) {
      problem = error.what();
      abandon_collectives(problem);
    }
  }
  const auto problems =
      comm::all_gather_object(*s.world, s.group(Group::kWorld), c10::IValue(problem));
  for (const c10::IValue& text : problems) {
    if (!text.toStringRef().empty()) {
      recover_collectives();
      throw UserError(text.toStringRef());
    }
  }
  return traces;
}

} // namespace tessera::train
