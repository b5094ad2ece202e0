// The first step's part of ModelCore: trace, partition, placing of parameters.
#include <cstdio>
#include <fstream>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/partition/partition.h"
#include "tessera/plan/from_config.h"
#include "tessera/runtime/error_text.h"
#include "tessera/tracer/delayed_init.h"
#include "tessera/tracer/describe.h"
#include "tessera/tracer/trace.h"
#include "tessera/train/decision.h"
#include "tessera/train/model_core.h"
#include "tessera/train/step_failure.h"

namespace tessera::train {

namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) {
    throw PlanError(str("partition_file '", path, "' cannot be read"));
  }
  return text.str();
}

class TracingFlag {
 public:
  explicit TracingFlag(bool& flag) : flag_(flag) {
    flag_ = true;
  }
  ~TracingFlag() {
    flag_ = false;
  }
  TracingFlag(const TracingFlag&) = delete;
  TracingFlag& operator=(const TracingFlag&) = delete;

 private:
  bool& flag_;
};

} // namespace

void ModelCore::ensure_partitioned(const std::function<void()>& first_microbatch) {
  if (!partitioned()) {
    place(agree_on_plan(first_microbatch));
  }
  // A state that does not fit is an error now; the step may be called again,
  // after another load_state_dict or without one.
  if (const auto state = std::exchange(deferred_state_, std::nullopt)) {
    apply_state(state->first, state->second);
  }
  for (const Hook& hook : std::exchange(partition_hooks_, {})) {
    hook();
  }
}

void ModelCore::place(plan::Plan plan) {
  apply_plan(std::move(plan));
  broadcast_from_first(local_parameters());
  broadcast_from_first(local_buffers());
  make_reducers();
}

// Rank 0 decides for all; an error there is an error on every rank.
plan::Plan ModelCore::agree_on_plan(const std::function<void()>& first_microbatch) {
  Session& s = session();
  std::string text;
  bool failed = false;
  bool tracing = false;
  if (s.world->rank() == 0) {
    const auto traced = [&] {
      tracing = true;
      first_microbatch();
      tracing = false;
    };
    try {
      text = plan::to_json(decide(traced));
    } catch (...) {
      failed = true;
      text = runtime::error_text(
          std::current_exception(),
          0,
          tracing ? "the step function, while it is traced" : "partitioning the model");
    }
  }
  const c10::IValue agreed = comm::broadcast_object(
      *s.world,
      s.group(Group::kWorld),
      c10::ivalue::Tuple::create({c10::IValue(failed), c10::IValue(text), c10::IValue(tracing)}),
      0);
  const auto& parts = agreed.toTupleRef().elements();
  if (parts[0].toBool() && parts[2].toBool()) {
    throw UserError(parts[1].toStringRef());
  }
  if (parts[0].toBool()) {
    throw PlanError(parts[1].toStringRef());
  }
  return plan::plan_from_json(parts[1].toStringRef());
}

plan::Plan ModelCore::decide(const std::function<void()>& first_microbatch) {
  Session& s = session();
  const Config& config = s.config;
  plan::Plan plan = plan::plan_from_config(config, s.world->size());
  plan.model = name_;
  if (config.load_partition) {
    plan.partition = plan::plan_from_json(read_file(*config.partition_file)).partition;
    return plan;
  }
  graph::ModelGraph graph;
  const bool alone = config.pipeline_parallel_degree == 1;
  if (alone || config.skip_tracing || !config.auto_partition) {
    graph = tracer::describe(*root_, plan.model);
  } else {
    const TracingFlag flag(s.tracing);
    // Rank 0 is alone here: distributed modules only shape what they exchange.
    nn::TensorParallel alone_of_group = nn::tensor_parallel();
    alone_of_group.shapes_only = true;
    const nn::TensorParallelScope scope(alone_of_group);
    tracer::TraceOptions options;
    options.measure_seconds = config.trace_execution_times;
    options.name = plan.model;
    graph = tracer::trace(*root_, first_microbatch, options);
  }
  partitioning::Options options;
  options.partitions = config.pipeline_parallel_degree;
  options.memory_weight = config.effective_memory_weight();
  options.auto_partition = config.auto_partition;
  options.default_partition = config.effective_default_partition();
  options.manual = config.partition;
  partitioning::Result result = partitioning::partition(graph, options);
  for (const std::string& warning : result.warnings) {
    std::fprintf(stderr, "tessera: warning: %s\n", warning.c_str());
  }
  plan.partition = result.partition;
  decision_ = std::make_shared<const Decision>(Decision{std::move(graph), std::move(result)});
  if (config.partition_file) {
    std::ofstream out(*config.partition_file);
    out << plan::to_json(plan) << '\n';
    if (!out) {
      throw PlanError(str("partition_file '", *config.partition_file, "' cannot be written"));
    }
  }
  return plan;
}

void ModelCore::apply_plan(plan::Plan plan) {
  Session& s = session();
  plan_ = std::move(plan);
  auto table =
      std::make_unique<runtime::ModuleTable>(root_, plan_->partition, s.group(Group::kPP).rank());
  std::vector<at::Tensor> mine;
  for (const auto& list : {table->local_parameters(), table->local_buffers()}) {
    for (const auto& [name, tensor] : list) {
      mine.push_back(tensor);
    }
  }
  tracer::materialize(mine);
  layout_->place(*table);
  take_over_weights();
  table->drop_remote_tensors();
  table_ = std::move(table);
  if (s.config.pipeline_parallel_degree == 1) {
    return;
  }
  schedule_ = plan::make_schedule(*plan_);
  if (s.order_transport != nullptr) {
    order_ = std::make_unique<runtime::OrderChannel>(s.group(s.order_group), *s.order_transport);
  }
  runtime::ServerContext context;
  context.modules = table_.get();
  context.transport = s.transport.get();
  context.pp_ranks = s.group(Group::kPP).ranks();
  context.schedule = schedule_.get();
  context.order = order_.get();
  context.recorder = s.recorder.get();
  context.timeout = s.world->options().timeout;
  context.seed = seed();
  context.rank = s.world->rank();
  context.reproducible = s.config.reproducible;
  context.failed = abandon_collectives;
  server_ = std::make_unique<runtime::Server>(std::move(context));
  if (s.config.static_mode) {
    runtime::StaticMode::Context around;
    around.modules = table_.get();
    around.world = s.world.get();
    around.all = &s.group(Group::kWorld);
    around.pipeline = &s.group(Group::kPP);
    around.ordered = order_ != nullptr ? &s.group(s.order_group) : nullptr;
    around.rank = s.world->rank();
    static_mode_ = std::make_unique<runtime::StaticMode>(
        runtime::StaticMode::Options{
            s.config.static_mode_steps, s.config.fast_mode, s.config.reproducible},
        std::move(around));
  }
}

} // namespace tessera::train
