#include "cli/train/forecast.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "tessera/autotune/trace_model.h"
#include "tessera/base/error.h"
#include "tessera/cost/constants.h"
#include "tessera/model/partition_notes.h"
#include "tessera/optim/adamw_8bit_state.h"
#include "tessera/partition/partition.h"
#include "tessera/plan/plan.h"
#include "tessera/planner/space.h"
#include "tessera/schedule/schedule.h"
#include "tessera/simulator/simulate.h"

#include "cli/train/job_preset.h"

namespace tessera::cli {

namespace {

// What one rank of a tensor-parallel group runs, or the whole model.
struct Part {
  const graph::ModelGraph& graph;
  const graph::ForwardWork& one;
  const graph::ForwardWork& two;
  int samples = 1; // by which `two` is larger than `one`
};

cost::Distribution distribution_of(const Job& job) {
  using config::Optimize;
  return job.parallel.tensor_parallel_kind == config::TensorParallelKind::k2d
             ? cost::Distribution::kMesh
         : job.parallel.optimize == Optimize::kMemory ? cost::Distribution::kMemory
                                                      : cost::Distribution::kSpeed;
}

Part part_of(const planner::ModelTrace& traced, const Job& job, int tensor_degree) {
  for (const planner::DivisionTrace& division : traced.divisions) {
    if (division.way.degree == tensor_degree && division.way.distribution == distribution_of(job) &&
        division.way.same_samples == job.parallel.prescaled_batch) {
      return {division.graph, division.least, division.twice, division.samples};
    }
  }
  // Nothing of the model can be divided so: every rank holds all of it.
  return {traced.graph, traced.one_sample, traced.two_samples, 1};
}

int in_flight(const Job& job, int stages) {
  if (stages == 1) {
    return 1; // each microbatch goes forward and backward before the next
  }
  const int all = static_cast<int>(job.parallel.microbatches);
  return job.parallel.pipeline == "simple"
             ? all
             : std::min(all, job.parallel.effective_active_microbatches());
}

// Of a tensor of which a rank holds so many elements.
double optimizer_bytes(const Job& job, double elements) {
  const double number = sizeof(float);
  const double moments = job.optimizer.type == "adamw_8bit" ? optim::adamw_8bit_bytes(elements)
                         : job.optimizer.type == "novograd" ? number * elements
                         : job.optimizer.type == "lamb" ? 3 * number * elements // with its updates
                         : job.optimizer.type != "sgd"  ? 2 * number * elements
                         : job.optimizer.momentum > 0   ? number * elements
                                                        : 0;
  return moments + (has_masters(job) ? number * elements : 0);
}

// The gradients of divided parameters that a rank holds whole during a step (docs/sharding.md).
class GradientBuckets {
 public:
  // Of a module; those that leave by themselves share no bucket.
  void take(const graph::Parameter& parameter, std::size_t module, int sharers) {
    constexpr std::int64_t kAlone = 262144; // elements
    const auto bytes = static_cast<double>( // of f16 in f32
        std::max<std::int64_t>(parameter.bytes, 4 * parameter.elements));
    of_layer_ = module == layer_ ? of_layer_ + bytes : bytes;
    layer_ = module;
    largest_layer_ = std::max(largest_layer_, of_layer_);
    if (parameter.elements >= kAlone && parameter.elements % sharers == 0) {
      largest_alone_ = std::max(largest_alone_, bytes);
    } else {
      shared_ += bytes;
    }
  }
  double most(const config::Config& config) const {
    const double bucket =
        std::min(sizeof(float) * static_cast<double>(config.sdp_reduce_bucket_size), shared_);
    const double largest = std::max(bucket, largest_alone_);
    // The bucket that fills, the layer whose backward runs, two that have left and their parts.
    return bucket + largest_layer_ + 2 * largest * (1 + 1.0 / config.sharded_data_parallel_degree);
  }

 private:
  double shared_ = 0;
  double largest_alone_ = 0;
  double largest_layer_ = 0;
  std::size_t layer_ = 0; // the last that was taken
  double of_layer_ = 0;
};

// Samples of one microbatch of a tensor-parallel group, whether its ranks bring
// the same ones or each its own; of the replica that takes most.
double microbatch_samples(const Job& job, const topology::Degrees& degrees) {
  const std::vector<int>& samples = job.parallel.replica_samples;
  const double most = samples.empty() ? static_cast<double>(job.data.batch) / degrees.reduced_data
                                      : *std::max_element(samples.begin(), samples.end());
  return most / static_cast<double>(job.parallel.microbatches);
}

// Module path -> pipeline rank, as the first step decides it.
std::map<std::string, int> partition_of(
    const Job& job,
    const graph::ModelGraph& graph,
    int stages,
    std::vector<std::string>& warnings) {
  if (job.parallel.load_partition) {
    return plans::load_plan(*job.parallel.partition_file).partition;
  }
  partitioning::Options options;
  options.partitions = stages;
  options.memory_weight = job.parallel.effective_memory_weight();
  options.auto_partition = job.parallel.auto_partition;
  options.default_partition = job.parallel.effective_default_partition();
  options.manual = job.parallel.partition;
  partitioning::Result result = partitioning::partition(graph, options);
  warnings = result.warnings;
  // The first step refuses the same.
  if (stages > 1 && options.auto_partition && !job.parallel.allow_ranks_without_parameters) {
    model::check_every_rank_owns_parameters(graph, result, stages);
  }
  return result.partition;
}

} // namespace

Forecast forecast(const Job& job, const models::Preset& preset, const topology::Degrees& degrees) {
  const PresetRun run = run_of(job);
  autotune::TraceRequest request;
  request.precision = run.precision;
  request.global_batch_size = run.global_batch_size;
  if (degrees.tensor > 1) {
    request.tensor_degrees = {degrees.tensor};
    request.whole_modules = job.parallel.whole_modules();
  }
  Forecast result;
  result.traced = autotune::trace_model(preset_source(preset, run.sequence), request);
  const Part part = part_of(result.traced, job, degrees.tensor);
  const auto partition = partition_of(job, part.graph, degrees.pipeline, result.warnings);
  result.stages.resize(static_cast<std::size_t>(degrees.pipeline));
  for (const graph::Module& module : part.graph.modules) {
    const auto found = partition.find(module.path);
    if (found == partition.end() || found->second < 0 || found->second >= degrees.pipeline) {
      throw ConfigError(
          str("'parallel': the partition places no module \"",
              module.path,
              "\" on one of ",
              degrees.pipeline,
              " pipeline ranks; it belongs to another model"));
    }
    result.stage_of_module.push_back(found->second);
  }
  const auto stage_of = [&](std::size_t module) -> StageBytes& {
    return result.stages[static_cast<std::size_t>(result.stage_of_module[module])];
  };

  std::vector<GradientBuckets> buckets(result.stages.size());
  // A parameter that several modules hold is of one stage: they are one node.
  std::vector<bool> counted(part.graph.parameters.size(), false);
  for (std::size_t i = 0; i < part.graph.modules.size(); ++i) {
    for (const int index : part.graph.modules[i].parameters) {
      if (counted[static_cast<std::size_t>(index)]) {
        continue;
      }
      counted[static_cast<std::size_t>(index)] = true;
      const graph::Parameter& parameter = part.graph.parameters[static_cast<std::size_t>(index)];
      // A rank keeps its share of a sharded parameter.
      const bool divided = parameter.elements >= job.parallel.sdp_param_persistence_threshold;
      if (divided && job.parallel.sharded_data_parallel_degree > 1) {
        buckets[static_cast<std::size_t>(result.stage_of_module[i])].take(
            parameter, i, job.parallel.sharded_data_parallel_degree);
      }
      const double share = divided ? 1.0 / job.parallel.sharded_data_parallel_degree : 1.0;
      const double bytes = share * static_cast<double>(parameter.bytes);
      const double elements = share * static_cast<double>(parameter.elements);
      StageBytes& stage = stage_of(i);
      stage.parameters += bytes;
      const double summed = job.parallel.fp32_grad_accumulation ? 4 * elements : bytes;
      // The optimizer works on f32 gradients of f32 masters. It has its share of the parameters.
      const double sharers = job.parallel.shard_optimizer_state ? degrees.reduced_data : 1;
      stage.gradients += summed + (has_masters(job) ? 4 * elements / sharers : 0);
      stage.optimizer += optimizer_bytes(job, elements) / sharers;
    }
  }
  for (std::size_t stage = 0; stage < buckets.size(); ++stage) {
    result.stages[stage].gradients += buckets[stage].most(job.parallel);
  }
  const double microbatches =
      microbatch_samples(job, degrees) / part.samples * in_flight(job, degrees.pipeline);
  for (std::size_t i = 0; i < part.one.size() && i < part.two.size(); ++i) {
    using Kind = graph::OperatorWork::Kind;
    if (part.one[i].kind != Kind::kView && part.one[i].kind != Kind::kCollective) {
      stage_of(static_cast<std::size_t>(part.one[i].module)).activations +=
          (part.two[i].bytes - part.one[i].bytes) * microbatches;
    }
  }
  return result;
}

double step_seconds(
    const Job& job,
    const Forecast& forecast,
    const topology::Degrees& degrees,
    const cost::Cluster& cluster) {
  if (cluster.device_count() != degrees.world_size()) {
    throw ConfigError(
        str("the cluster file describes ",
            cluster.device_count(),
            " devices, the job has ",
            degrees.world_size(),
            " ranks; --ranks says how many it will have"));
  }
  const cost::DescribedModel model = planner::describe_traced(forecast.traced, cluster);
  cost::Strategy strategy;
  strategy.pp = degrees.pipeline;
  strategy.tp = degrees.tensor;
  strategy.dp = degrees.reduced_data;
  strategy.microbatch_size = static_cast<int>(microbatch_samples(job, degrees));
  for (const int samples : job.parallel.replica_samples) {
    strategy.replica_microbatch.push_back(samples / job.parallel.microbatches);
  }
  strategy.schedule = Choice<cost::Schedule>(job.parallel.pipeline).value();
  strategy.active_microbatches = in_flight(job, degrees.pipeline);
  strategy.fast_mode = job.parallel.fast_mode;
  strategy.activation_checkpointing = false;
  strategy.shard_optimizer_state = job.parallel.shard_optimizer_state;
  if (degrees.tensor > 1) {
    strategy.distribution = distribution_of(job);
    strategy.same_samples = job.parallel.prescaled_batch;
  }
  // The planner's layers are in order of execution: the runtime's partition has to cut them into
  // runs, one for each rank or several in turns.
  const graph::ModelGraph& graph = part_of(forecast.traced, job, degrees.tensor).graph;
  strategy.boundaries = {0};
  int stage = 0;
  for (std::size_t layer = 0; layer < model.layers.size(); ++layer) {
    const auto module = std::find_if(
        graph.modules.begin(), graph.modules.end(), [&](const graph::Module& candidate) {
          return candidate.path == model.layers[layer].name;
        });
    TESSERA_CHECK(module != graph.modules.end(), model.layers[layer].name);
    const int of_layer =
        forecast.stage_of_module[static_cast<std::size_t>(module - graph.modules.begin())];
    const int rank = stage % degrees.pipeline;
    if (of_layer != rank && of_layer == (stage + 1) % degrees.pipeline) {
      strategy.boundaries.push_back(static_cast<int>(layer));
      ++stage;
    } else if (of_layer != rank) {
      throw ConfigError("the partition does not run the model's layers in order");
    }
  }
  strategy.boundaries.push_back(static_cast<int>(model.layers.size()));
  if ((stage + 1) % degrees.pipeline != 0) {
    throw ConfigError(
        stage + 1 < degrees.pipeline
            ? "the partition leaves a pipeline rank without a layer"
            : "the partition gives some pipeline ranks more stages in turns than others");
  }
  strategy.stages_per_rank = (stage + 1) / degrees.pipeline;
  std::vector<int> nodes(cluster.nodes.size());
  std::iota(nodes.begin(), nodes.end(), 0);
  const std::string letters =
      topology::PlacementStrategy(job.parallel.placement_strategy).letters();
  strategy.device_of_rank = planner::devices_in_order(cluster, nodes);
  cost::validate(
      strategy,
      cluster.device_count(),
      static_cast<int>(model.layers.size()),
      model.global_batch_size);
  strategy.placement = letters;
  strategy.device_of_rank = cost::lay_out(strategy, letters, strategy.device_of_rank);
  simulator::SimulationOptions options;
  options.keep_events = false;
  if (strategy.schedule == cost::Schedule::kCustom) {
    options.custom_order = schedule::parse_order(*job.parallel.custom_schedule);
  }
  options.constants = cost::runtime_constants(cluster, model.precision);
  return simulator::simulate(model, cluster, strategy, options).iteration_seconds;
}

} // namespace tessera::cli
