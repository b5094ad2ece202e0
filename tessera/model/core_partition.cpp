// ModelCore's part of the partition: the decision, placing of parameters.
#include <fstream>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/deferred_init/delayed_init.h"
#include "tessera/model/decision.h"
#include "tessera/model/model_core.h"
#include "tessera/model/partition_notes.h"
#include "tessera/model/recomputed_parts.h"
#include "tessera/nn/module/marks.h"
#include "tessera/partition/partition.h"
#include "tessera/plan/from_config.h"
#include "tessera/tracer/describe.h"

namespace tessera::model {

namespace {

// By path, the pp rank of every module that the script or the key `partition` puts on one: its own,
// or that of the module around it.
std::map<std::string, int> placed_modules(const torch::nn::Module& root, const Config& config) {
  std::map<std::string, int> placed;
  if (config.auto_partition) {
    return placed;
  }
  for (const auto& item : root.named_modules()) {
    const std::string& path = item.key();
    const auto written = config.partition.find(path);
    const int marked = nn::manual_partition(*item.value());
    const auto dot = path.rfind('.');
    const auto around = placed.find(dot == std::string::npos ? "" : path.substr(0, dot));
    if (written != config.partition.end()) {
      placed[path] = written->second;
    } else if (marked >= 0) {
      placed[path] = marked;
    } else if (around != placed.end()) {
      placed[path] = around->second;
    }
  }
  return placed;
}

} // namespace

bool ModelCore::with_values(const std::function<void()>& act) {
  if (partitioned()) {
    act();
    return true;
  }
  if (has_delayed()) {
    return false;
  }
  plan_ = plans::plan_from_config(context().config, context().world->size());
  for (const graph::Module& module : tracer::describe(*root_, name_).modules) {
    plan_->partition[module.path] = 0;
  }
  const struct Forget { // also when `act` throws
    ~Forget() {
      core.table_.reset();
      core.plan_.reset();
    }
    ModelCore& core;
  } forget{*this};
  table_ = std::make_unique<runtime::ModuleTable>(root_, plan_->partition, 0);
  layout_->place(*table_);
  take_over_weights();
  act();
  return true;
}

void ModelCore::complete_partition() {
  // A state that does not fit is an error now; the step may be called again,
  // after another load_state_dict or without one.
  if (const auto state = std::exchange(deferred_state_, std::nullopt)) {
    apply_state(state->first, state->second);
  }
  run_all(std::exchange(partition_hooks_, {}));
}

plans::Plan ModelCore::decide(std::optional<graph::ModelGraph> traced, bool only) {
  const Config& config = context().config;
  if (config.partition_file && !only) {
    throw PlanError(
        str("partition_file '",
            *config.partition_file,
            "' holds the partition of one model, and this process has several; leave the key "
            "out"));
  }
  plans::Plan plan = plans::plan_from_config(config, context().world->size());
  plan.model = name_;
  if (config.load_partition) {
    const FileContent file = try_read_file(*config.partition_file);
    if (!file.bytes) {
      throw PlanError(
          str("partition_file '", *config.partition_file, "' cannot be read: ", file.failure));
    }
    plan.partition = plans::plan_from_json(*file.bytes).partition;
    return plan;
  }
  graph::ModelGraph graph = traced ? std::move(*traced) : tracer::describe(*root_, plan.model);
  partitioning::Options options;
  options.partitions = config.pipeline_parallel_degree;
  options.memory_weight = config.effective_memory_weight();
  options.auto_partition = config.auto_partition;
  options.default_partition = config.effective_default_partition();
  options.manual = config.partition;
  if (operations_ != nullptr) {
    options.auto_partition = false;
    for (const auto& [path, rank] : operations_->divide(placed_modules(*root_, config))) {
      options.manual[path] = rank;
    }
    log::info(str("partition", only ? "" : " of " + label_, ": ", operations_->summary()));
  }
  partitioning::Result result = partitioning::partition(graph, options);
  for (const std::string& warning : result.warnings) {
    log::warning(warning);
  }
  if (options.partitions > 1) {
    for (const std::string& note : notes_on_kept_modules(graph)) {
      log::info(note);
    }
    log::info(
        str("partition",
            only ? std::string() : str(" of ", label_),
            ": pipeline ",
            shares_of_ranks(graph, result, options.partitions)));
    log::info(
        str("Partition assignments",
            only ? std::string() : str(" of ", label_),
            ": ",
            places_of_modules(graph, result, options.partitions)));
    // With several models another one may fill the rank.
    if (only && config.auto_partition && !config.allow_ranks_without_parameters) {
      check_every_rank_owns_parameters(graph, result, options.partitions);
    }
  }
  plan.partition = result.partition;
  decision_ = std::make_shared<const Decision>(Decision{std::move(graph), std::move(result)});
  if (config.partition_file) {
    std::ofstream out(*config.partition_file);
    out << plans::to_json(plan) << '\n';
    if (!out) {
      throw PlanError(str("partition_file '", *config.partition_file, "' cannot be written"));
    }
  }
  return plan;
}

void ModelCore::place(plans::Plan plan) {
  const Context& context = this->context();
  plan_ = std::move(plan);
  auto table = std::make_unique<runtime::ModuleTable>(
      root_, plan_->partition, context.group(Group::kPP).rank());
  std::vector<at::Tensor> mine;
  for (const auto& [name, tensor] : table->local_parameters()) {
    // What ranks keep a part of is made later, one tensor at a time, but for what takes over the
    // weights of a module that tensor parallelism has replaced.
    if (!tensor.is_meta() || layout_->in_distributed_module(name) ||
        !sharding::ModelShards::divides(context.config, name, tensor)) {
      mine.push_back(tensor);
    }
  }
  for (const auto& [name, tensor] : table->local_buffers()) {
    mine.push_back(tensor);
  }
  check_recomputed_parts(*table, context.config.auto_partition);
  tracer::materialize(mine);
  layout_->place(*table);
  take_over_weights();
  table->drop_remote_tensors(context.group(Group::kPP).ranks());
  table_ = std::move(table);
  for (const at::Tensor& parameter : all_parameters()) {
    placed_parameters_.insert(parameter.unsafeGetTensorImpl());
  }
  parameter_functions_.place(*table_, *layout_, context.config.pipeline_parallel_degree);
  place_operations();
  plain_backward_ = std::make_unique<runtime::PlainBackwardGuard>(table_->local_parameters());
}

void ModelCore::place_operations() {
  if (operations_ == nullptr) {
    return;
  }
  const runtime::ModuleTable& table = *table_;
  operations_->place(
      table.pp_rank(),
      [&table](const std::string& name) { return table.owner_of_tensor(name); },
      [&table](const std::string& name) { return table.tensor(name); });
  int rank = 0;
  for (const auto& target : operations_->targets()) {
    table_->add(str("(the operations of pp rank ", rank, ")"), *target, rank);
    ++rank;
  }
}

} // namespace tessera::model
