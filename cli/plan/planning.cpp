#include "cli/plan/planning.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <optional>

#include <unistd.h>

#include "tessera/autotune/plan_model.h"
#include "tessera/base/error.h"
#include "tessera/planner/description.h"
#include "tessera/planner/nothing_fits.h"
#include "tessera/planner/runtime_abilities.h"
#include "tessera/planner/without_hosts.h"

#include "cli/interruption.h"
#include "cli/number_check.h"
#include "cli/redrawn_line.h"
#include "cli/train/job_preset.h"
#include "cli/train/preset_source.h"

namespace tessera::cli {

namespace {

std::string text_of(const planner::SearchProgress& progress) {
  constexpr int kWidth = 30;
  char counts[80];
  std::snprintf(counts, sizeof(counts), " %d of %d", progress.done, progress.total);
  std::string text = progress_bar(progress.done, progress.total, kWidth) + counts;
  if (std::isfinite(progress.best_seconds)) {
    std::snprintf(counts, sizeof(counts), "  best %.4f s", progress.best_seconds);
    text += counts;
  }
  return text;
}

cost::DescribedModel traced_of(const PlanningInput& input, const cost::Cluster& cluster) {
  PresetRun run;
  models::Preset preset;
  std::optional<double> state_bytes;
  bool recomputes = false;
  if (!input.job_file.empty()) {
    const Job job = load_job(input.job_file);
    preset = preset_of(job);
    state_bytes = state_bytes_per_parameter(job);
    run = run_of(job);
    recomputes = job.activation_checkpointing != "none";
  } else {
    preset = models::find_preset(input.preset);
    run.sequence = input.sequence;
    run.global_batch_size = input.global_batch_size;
    if (run.global_batch_size == 0) {
      throw ConfigError(
          str("--global-batch-size is missing; write the samples of one step "
              "of ",
              input.preset));
    }
  }
  if (!input.precision.empty()) {
    run.precision = precision_of(input.precision);
  }
  try {
    cost::DescribedModel model = autotune::describe_model(
        preset_source(preset, run.sequence), run.global_batch_size, run.precision, cluster);
    model.activation_checkpointing = input.activation_checkpointing || recomputes;
    model.optimizer_state_bytes = state_bytes;
    return model;
  } catch (const planner::UnmeasuredDevice& error) {
    throw ConfigError(
        str(error.what(),
            " (tessera probe writes the file of a measured cluster, --model-file takes a described "
            "model)"));
  }
}

const std::map<std::string, planner::Method> kMethods = {
    {"amp", planner::Method::kAmp},
    {"annealing", planner::Method::kAnnealing},
    {"megatron", planner::Method::kMegatron},
    {"uniform", planner::Method::kUniform},
    {"random", planner::Method::kRandom}};

const std::map<std::string, planner::Objective> kObjectives = {
    {"time", planner::Objective::kTime},
    {"cost", planner::Objective::kCost},
    {"energy", planner::Objective::kEnergy}};

// The simulator executes so many of the best strategies of a described model, on so few devices
// that this takes about as long as the search.
constexpr int kSimulated = 24;
constexpr int kMostSimulated = 64;

// Options by which a search that found nothing might find something.
std::string options_that_help(const planner::NothingFits& error) {
  for (const planner::Remedy remedy : error.remedies()) {
    if (remedy == planner::Remedy::kUnrunnable) {
      return " (search without --runnable; --explain says what it lacks)";
    }
  }
  return "";
}

} // namespace

void add_planning_options(CLI::App& app, PlanningInput& input) {
  app.add_option("--model-file", input.model_file, "a described model, see plan --schema");
  app.add_option(
      "--model", input.preset, "a preset in place of --model-file, see partition --list");
  app.add_option(
      "--job",
      input.job_file,
      "a job of tessera train in place of --model-file: its model, data, batch "
      "and precision");
  app.add_option("--precision", input.precision, "of a preset: f32, bf16 or fp16")
      ->check(CLI::IsMember({"f32", "bf16", "fp16"}));
  app.add_option("--sequence", input.sequence, "of a preset: positions of a sample")
      ->check(positive_number());
  app.add_flag(
      "--activation-checkpointing",
      input.activation_checkpointing,
      "of a preset: recompute the activations of every layer but the first");
  app.add_option(
      "--cluster-file",
      input.cluster_file,
      "a cluster that tessera probe measured, or a described one, see plan "
      "--schema");
  app.add_option(
         "--without",
         input.without,
         "a host of the cluster file that is gone, by name or number; may be repeated")
      ->take_all()
      ->allow_extra_args(false);
  app.add_option(
         "--global-batch-size",
         input.global_batch_size,
         "samples of an iteration; those of the model file or the job when not given, needed with "
         "--model")
      ->check(positive_number());
  app.add_option(
         "--method",
         input.method,
         "amp, annealing (of the placement), megatron (its heuristics), uniform (even layers) or "
         "random")
      ->check(CLI::IsMember({"amp", "annealing", "megatron", "uniform", "random"}))
      ->capture_default_str();
  app.add_option("--keep", input.search.keep, "best strategies to show")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--seed", input.search.seed, "of annealing and random")->capture_default_str();
  app.add_option("--samples", input.search.samples, "strategies that random draws")
      ->check(CLI::Range(1, 10000000))
      ->capture_default_str();
  app.add_option("--schedule", input.schedule, "interleaved, simple, or any: both are compared")
      ->check(CLI::IsMember({"interleaved", "simple", "any"}))
      ->capture_default_str();
  app.add_option(
         "--memory-limit",
         input.memory_limit,
         "plan as if no device had more memory than this: bytes, or with a unit (24GiB)")
      ->transform(size_in_bytes());
  app.add_option(
         "--save-memory",
         input.save_memory,
         "needed: recompute, shard and offload where nothing fits otherwise; compare: wherever it "
         "is faster")
      ->check(CLI::IsMember({"needed", "compare"}));
  app.add_flag(
      "--leave-out", input.search.subsets, "also strategies that leave nodes out: slow ones, say");
  app.add_option(
         "--spare-nodes", input.search.spare_nodes, "leave at least so many nodes out, as spares")
      ->check(CLI::Range(0, 1000000));
  app.add_option(
         "--objective",
         input.objective,
         "time, cost or energy of a step; the last two need prices or watts in the cluster file")
      ->check(CLI::IsMember({"time", "cost", "energy"}))
      ->capture_default_str();
  app.add_option(
         "--active-microbatches",
         input.search.active_microbatches,
         "most microbatches in flight in the runtime's order; 0 is the fixed "
         "order of one forward, one backward")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  app.add_flag(
      "--fast-mode",
      input.search.fast_mode,
      "pipelines of three ranks and more in static and fast mode, which -o writes, for models "
      "whose "
      "calls are the same in every step; of a described model with --runnable or -o");
  app.add_option(
         "--most-stages-per-rank",
         input.search.most_stages_per_rank,
         "stages in turns that a pipeline rank may hold, in the runtime's order")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag(
      "--shard-optimizer-state",
      input.search.shard_optimizer_state,
      "divide the optimizer's state over replicas");
  app.add_flag(
      "--overlap-gradients",
      input.search.overlap_gradients,
      "gradients travel while the last backward runs");
  app.add_option(
         "--only-tp", input.search.tensor_degree, "only strategies of this tensor-parallel degree")
      ->check(positive_number());
  app.add_flag(
      "--keep-node-order",
      input.search.keep_node_order,
      "only strategies for the hosts as the cluster file orders them");
  app.add_flag(
      "--runnable",
      input.search.runnable_only,
      "only what this version can train with, priced as it runs");
}

cost::DescribedModel model_of(const PlanningInput& input, const cost::Cluster& cluster) {
  const int sources = (input.model_file.empty() ? 0 : 1) + (input.preset.empty() ? 0 : 1) +
                      (input.job_file.empty() ? 0 : 1);
  if (sources != 1) {
    throw ConfigError(
        str(sources == 0 ? "--model-file, --model or --job is missing"
                         : "--model-file, --model and --job exclude each other",
            "; write the file of a described model (tessera plan --schema "
            "prints its form), the name of a preset (tessera partition "
            "--list), or a job of tessera train"));
  }
  if (input.model_file.empty()) {
    return traced_of(input, cluster);
  }
  cost::DescribedModel model = planner::load_model(input.model_file);
  // The runtime's stages answer the module that called them (decision 20).
  model.returns_home = input.search.runnable_only;
  if (model.activation_checkpointing && input.search.runnable_only &&
      !planner::runtime_abilities().activation_checkpointing) {
    std::fprintf(
        stderr,
        "tessera: %s says that layers recompute their activations (\"activation_checkpointing\"), "
        "which no key of a configuration does: what runs (--runnable, -o, --trials) is searched "
        "without it, so a program that recomputes takes more time and less memory\n",
        input.model_file.c_str());
  }
  if (input.global_batch_size != 0) {
    model.global_batch_size = input.global_batch_size;
    cost::validate(model);
  }
  return model;
}

planner::SearchOptions search_options(
    const PlanningInput& input,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster) {
  planner::SearchOptions search = input.search;
  search.method = kMethods.at(input.method);
  search.compare_schedules = input.schedule == "any";
  if (!search.compare_schedules) {
    search.schedule = Choice<cost::Schedule>(input.schedule).value();
  }
  search.save_memory = search.runnable_only || input.save_memory == "needed";
  search.compare_savings = input.save_memory == "compare";
  search.memory_limit_bytes = static_cast<double>(input.memory_limit);
  search.objective = kObjectives.at(input.objective);
  search.can_recompute = input.writes_job && model.traced() != nullptr;
  if (!input.job_file.empty()) {
    follow_job(load_job(input.job_file), cluster, search);
  }
  if (input.search.fast_mode && !model.returns_home) {
    throw ConfigError(
        "--fast-mode: a described model is priced without the runtime's detour over rank 0, which "
        "fast "
        "mode leaves out; add --runnable to price it as it runs here, or leave --fast-mode out");
  }
  // On a cluster that was measured, what runs is priced as it runs here.
  if (model.traced() || (search.runnable_only && cluster.measured)) {
    autotune::search_what_runs(model, cluster, search);
  } else if (cluster.device_count() <= kMostSimulated) {
    // The estimate knows no limit of microbatches in flight, which slow networks are felt by.
    search.simulate = kSimulated;
  }
  return search;
}

cost::Cluster cluster_of(const PlanningInput& input) {
  if (input.cluster_file.empty()) {
    throw ConfigError(
        "--cluster-file is missing; write the file of a described cluster "
        "(tessera plan --schema prints its form)");
  }
  cost::Cluster cluster =
      planner::without_hosts(planner::load_cluster(input.cluster_file), input.without);
  for (const cost::DeviceKind& kind : cluster.kinds) {
    if (kind.memory_bytes_per_s == 0 && !cluster.measured) {
      std::fprintf(
          stderr,
          "tessera: the memory bandwidth of device \"%s\" is not known, so "
          "the optimizer step takes no time in the estimate; write "
          "memory_gb_per_s in %s\n",
          kind.name.c_str(),
          input.cluster_file.c_str());
    }
  }
  return cluster;
}

planner::SearchResult search_with_progress(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    planner::SearchOptions options) {
  const Interruption interruption;
  options.stop = &interruption.asked();
  using Clock = std::chrono::steady_clock;
  Clock::time_point drawn = Clock::now();
  RedrawnLine line(stderr);
  if (isatty(STDERR_FILENO) != 0) {
    options.progress = [&](const planner::SearchProgress& progress) {
      if (Clock::now() - drawn > std::chrono::milliseconds(100)) {
        drawn = Clock::now();
        line.show(text_of(progress));
      }
    };
  }
  planner::SearchResult result;
  try {
    result = planner::search(model, cluster, options);
  } catch (const planner::NothingFits& error) {
    throw PlanError(error.what() + options_that_help(error));
  }
  line.clear();
  if (result.interrupted) {
    std::fprintf(stderr, "tessera: interrupted; this is the best so far\n");
    if (result.best.empty()) {
      throw PlanError("interrupted before any strategy was found");
    }
  }
  return result;
}

} // namespace tessera::cli
