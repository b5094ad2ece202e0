// Partitions models in the first step that calls them: which models, from what
// trace, and the agreement of all ranks on it.
#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/context/agreement.h"
#include "tessera/model/model_core.h"
#include "tessera/nn/parallel/context.h"
#include "tessera/plan/from_config.h"
#include "tessera/runtime/error_text.h"
#include "tessera/tensor/random_state.h"
#include "tessera/tensor/value.h"
#include "tessera/tracer/describe.h"
#include "tessera/train/engine.h"
#include "tessera/train/step_failure.h"
#include "tessera/train/step_runner.h"

namespace tessera::train {

namespace {

// While the step function is traced: `model.backward` does nothing.
class TracingFlag {
 public:
  TracingFlag(bool& tracing, bool& in_step) : tracing_(tracing), in_step_(in_step) {
    tracing_ = in_step_ = true;
  }
  ~TracingFlag() {
    tracing_ = in_step_ = false;
  }
  TracingFlag(const TracingFlag&) = delete;
  TracingFlag& operator=(const TracingFlag&) = delete;

 private:
  bool& tracing_;
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
  if (tracing_) {
    called_.insert(&model);
  } else {
    runner().check_not_waiting(model);
  }
}

void StepEngine::ensure_partitioned(const StepCall& call, const StepFunction& run) {
  partition_waiting(call, run);
  for (ModelCore* model : models()) {
    if (model->partitioned()) {
      model->complete_partition();
    }
  }
}

void StepEngine::partition_whole(ModelCore& model) {
  place({&model}, agree([&](bool&) {
          return std::vector<std::string>{plans::to_json(model.decide({}, models_->single()))};
        }));
}

// All ranks choose the same models and the same way, from what all of them know.
void StepEngine::partition_waiting(const StepCall& call, const StepFunction& run) {
  const Config& config = context_.config;
  // Operators are known from a call, wherever the script wants them.
  const bool traces = config.partition_mode == config::PartitionMode::kOperations ||
                      (config.auto_partition && !config.skip_tracing && !config.load_partition);
  std::set<int>& passed_over = passed_over_[call.function];
  std::vector<ModelCore*> traced;
  std::vector<ModelCore*> described;
  bool served = false; // some model is on several ranks already
  bool delayed = false;
  for (ModelCore* model : models()) {
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
    describe_and_place(described, passed_over);
    served = true;
  }
  if (!traced.empty()) {
    trace_and_place(traced, call, run, served);
  }
  for (const ModelCore* model : traced) {
    if (!model->partitioned()) {
      passed_over.insert(model->number());
    }
  }
}

void StepEngine::describe_and_place(
    const std::vector<ModelCore*>& models,
    const std::set<int>& passed_over) {
  place(models, agree([&](bool&) {
          std::vector<std::string> plans;
          for (ModelCore* model : models) {
            plans.push_back(plans::to_json(model->decide({}, models_->single())));
            if (passed_over.contains(model->number())) {
              log::info(
                  str("model '",
                      model->label(),
                      "' is partitioned from its description, because the first call of this step "
                      "function did not call it"));
            }
          }
          return plans;
        }));
}

// Microbatches that take turns would find each other's members: such models run one at a time.
bool StepEngine::microbatches_share_state(const std::vector<tracer::RunTrace>& traces) const {
  std::string modules;
  for (const tracer::RunTrace& trace : traces) {
    for (const std::string& module : trace.keeps_state) {
      modules += (modules.empty() ? "" : ", ") + module;
    }
  }
  const plans::Plan configured = plans::plan_from_config(context_.config, context_.world->size());
  if (modules.empty() || configured.microbatches == 1 || plans::runs_one_at_a_time(configured)) {
    return false;
  }
  log::info(str(
      "the forward of ",
      modules,
      " keeps something in a member, which microbatches that take turns would share; so each of "
      "the ",
      configured.microbatches,
      " microbatches runs to its end before the next begins (active_microbatches 1 in place "
      "of ",
      std::min(configured.effective_active_microbatches(), configured.microbatches),
      configured.schedule == "interleaved"
          ? std::string()
          : str(", pipeline \"interleaved\" in place of \"", configured.schedule, "\""),
      "). To have them overlap, keep it in a local variable, or give it on as an argument and a "
      "result"));
  return true;
}

// Calls of one microbatch are in order, and those of others come in between.
void StepEngine::warn_of_shared_buffers(const tracer::RunTrace& trace) const {
  const plans::Plan configured = plans::plan_from_config(context_.config, context_.world->size());
  if (context_.config.pipeline_parallel_degree == 1 || context_.config.reproducible ||
      configured.microbatches == 1 || plans::runs_one_at_a_time(configured)) {
    return;
  }
  for (const std::string& buffer : trace.changed_buffers) {
    // Statistics of a batch norm, which no training reads.
    if (buffer.ends_with("running_mean") || buffer.ends_with("running_var")) {
      continue;
    }
    const graph::Module* holder = nullptr; // the innermost that can be on a rank of its own
    for (const graph::Module& module : trace.graph.modules) {
      const bool holds = module.path.empty() || buffer.starts_with(module.path + ".");
      if (holds && (holder == nullptr || module.path.size() > holder->path.size())) {
        holder = &module;
      }
    }
    if (holder != nullptr && holder->calls > 1) {
      log::warning(
          str("the forward of '",
              holder->path,
              "' (",
              holder->type,
              ") changes its buffer '",
              buffer,
              "' and runs ",
              holder->calls,
              " times for a microbatch: calls of other microbatches come in between, so what it "
              "reads there is not what one process reads. Write \"reproducible\": true, which "
              "keeps buffers in the order of microbatches, or \"active_microbatches\": 1"));
      return;
    }
  }
}

// `served`: some model is on several ranks already.
void StepEngine::trace_and_place(
    const std::vector<ModelCore*>& models,
    const StepCall& call,
    const StepFunction& run,
    bool served) {
  std::vector<tracer::RunTrace> traces;
  called_.clear();
  if (served) {
    traces = trace_on_pipeline(models, call, run);
  }
  place(models, agree([&](bool& tracing) {
          if (!served) {
            try {
              traces = trace(models, [&](int microbatch) {
                tracing = true;
                c10::IValue result = run(microbatch);
                tracing = false;
                return result;
              });
            } catch (const UserError&) {
              tracing = true; // also what the trace says of the script's code at its end
              throw;
            }
          }
          for (const tracer::RunTrace& trace : traces) {
            known_state_.insert(trace.keeps_state.begin(), trace.keeps_state.end());
          }
          const bool shares_state = microbatches_share_state(traces);
          std::vector<std::string> plans(models.size());
          for (std::size_t i = 0; i < models.size(); ++i) {
            if (!shares_state) {
              warn_of_shared_buffers(traces[i]);
            }
            if (traces[i].called || called_.contains(models[i])) {
              plans::Plan plan = models[i]->decide(std::move(traces[i].graph), models_->single());
              tracer::check_member_reads(traces[i].member_reads, plan.partition);
              if (shares_state) {
                plans::run_one_at_a_time(plan);
              }
              plans[i] = plans::to_json(plan);
            }
          }
          return plans;
        }));
}

// An empty plan: the model stays as it is.
void StepEngine::place(
    const std::vector<ModelCore*>& models,
    const std::vector<std::string>& plans) {
  for (std::size_t i = 0; i < models.size(); ++i) {
    if (!plans[i].empty()) {
      models[i]->place(plans::plan_from_json(plans[i]));
      if (plans::runs_one_at_a_time(models[i]->plan())) {
        runner().run_one_at_a_time();
      }
      models_->partitioned();
      runner().add(*models[i]);
      models[i]->join_replicas(models_->single());
    }
  }
}

// Rank 0 decides for all; an error there is an error on every rank. `decide`
// sets its argument while user code runs.
std::vector<std::string> StepEngine::agree(
    const std::function<std::vector<std::string>(bool&)>& decide) {
  const Context& s = context_;
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
            "behind if (!tessera::is_tracing()), or write \"skip_tracing\": true. A gradient of a "
            "gradient (create_graph) needs its modules on one rank, traced or not.";
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
    const StepFunction& run) {
  if (context_.config.partition_mode == config::PartitionMode::kOperations) {
    return see_operations(models, run);
  }
  std::vector<tracer::RunModel> roots;
  for (const ModelCore* model : models) {
    roots.push_back({model->root().get(), model->name()});
  }
  // Rank 0 is alone here: distributed modules only shape what they exchange.
  nn::TensorParallel alone_of_group = nn::tensor_parallel();
  alone_of_group.shapes_only = true;
  const nn::TensorParallelScope scope(alone_of_group);
  tracer::TraceOptions options;
  options.measure_seconds = context_.config.trace_execution_times;
  options.measure_kept_memory = context_.config.trace_memory_usage;
  options.refuse_carried_state = true;
  const TracingFlag flag(tracing_, in_step_);
  return tracer::trace_models(
      roots, [&] { return run(0); }, options);
}

// The models record what they are asked for themselves (ModelCore::operations).
std::vector<tracer::RunTrace> StepEngine::see_operations(
    const std::vector<ModelCore*>& models,
    const StepFunction& run) {
  const at::NoGradGuard no_grad;
  const KeptBuffers buffers(models);
  const KeepRandomState random;
  {
    const TracingFlag flag(tracing_, in_step_);
    run(0);
  }
  std::vector<tracer::RunTrace> traces;
  for (const ModelCore* model : models) {
    traces.emplace_back().graph = tracer::describe(*model->root(), model->name());
  }
  return traces;
}

// Some models are on several ranks already, so their ranks take part: a step
// whose first microbatch runs forward only, while the others return at once.
// The models to trace are still whole on every rank and run beside the step
// function. Every replica does it, since modules may hold collectives; rank 0
// alone writes down what it sees.
std::vector<tracer::RunTrace> StepEngine::trace_on_pipeline(
    const std::vector<ModelCore*>& models,
    const StepCall& call,
    const StepFunction& run) {
  std::vector<tracer::RunTrace> traces(models.size());
  std::vector<tracer::RunModel> roots;
  for (const ModelCore* model : models) {
    roots.push_back({model->root().get(), model->name()});
  }
  if (context_.config.trace_memory_usage) {
    throw ConfigError(str(
        "trace_memory_usage runs a model with gradients on rank 0 alone, and model '",
        models.front()->name(),
        "' was made after another one was divided over the pipeline ranks; make all models before "
        "the first step, or leave the key out"));
  }
  tracer::TraceOptions options;
  options.measure_seconds = context_.config.trace_execution_times;
  const StepFunction first_only = [&](int microbatch) -> c10::IValue {
    if (microbatch > 0) {
      return {};
    }
    const at::NoGradGuard no_grad;
    if (context_.world->rank() == 0) {
      traces = tracer::trace_models(
          roots, [&] { return run(0); }, options);
    } else {
      for (int i = 0; i < (options.measure_seconds ? 2 : 1); ++i) {
        run(0); // as often as rank 0, whose modules may hold collectives
      }
    }
    return {};
  };
  std::optional<std::string> problem;
  {
    const KeptBuffers buffers(this->models());
    const TracingFlag flag(tracing_, in_step_);
    try {
      runner().run(
          {call, step_, numbers_.learnt(), "", first_only, /*settings=*/{}, /*tracing=*/true});
    } catch (const UserError& error) {
      problem = error.what();
      abandon_collectives(*problem);
    }
  }
  problem = first_problem(*context_.world, context_.group(Group::kWorld), problem);
  if (problem) {
    recover_collectives();
    throw UserError(*problem);
  }
  return traces;
}

} // namespace tessera::train
