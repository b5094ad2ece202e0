#include "cli/plan/plan_request.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/planner/runtime_abilities.h"

#include "cli/same_file.h"

namespace tessera::cli {

bool writes(const PlanRequest& options) {
  return !options.config_file.empty() || !options.parallel_config_file.empty() ||
         !options.plan_file.empty() || !options.written_hostfile.empty();
}

bool into_configuration(const PlanRequest& options) {
  return !options.parallel_config_file.empty() || !options.plan_file.empty() ||
         !options.input.model_file.empty();
}

namespace {

/// What was measured or written by hand would be lost. A job may be replaced by the job with its
/// plan.
void refuse_to_replace_inputs(const PlanRequest& options) {
  const std::pair<const char*, const std::string&> written[] = {
      {"-o", options.config_file},
      {"--library-config", options.parallel_config_file},
      {"--plan-file", options.plan_file},
      {"--write-hostfile", options.written_hostfile}};
  const std::pair<const char*, const std::string&> read[] = {
      {"--cluster-file", options.input.cluster_file},
      {"--model-file", options.input.model_file},
      {"--calibrate", options.calibration},
      {"--hostfile", options.trial.hostfile}};
  for (const auto& [writer, out] : written) {
    for (const auto& [reader, in] : read) {
      if (!out.empty() && !in.empty() && same_file(out, in)) {
        throw ConfigError(
            str(writer,
                " ",
                out,
                " is the file of ",
                reader,
                ", which would be lost; write to ",
                "another file"));
      }
    }
  }
}

/// What is only priced cannot be written or tried.
void refuse_what_cannot_run(const PlanRequest& options) {
  const planner::SearchOptions& search = options.input.search;
  if (!options.price.empty() && search.fast_mode) {
    throw ConfigError(
        "--fast-mode chooses strategies, and --price prices those of a file; write a column "
        "fast_mode "
        "of 0 and 1 into it");
  }
  if (!options.price.empty() &&
      (search.overlap_gradients || search.shard_optimizer_state || search.active_microbatches > 0 ||
       options.input.memory_limit > 0)) {
    throw ConfigError(
        "--price prices the strategies of a file as its columns say; leave out "
        "--overlap-gradients, "
        "--shard-optimizer-state (write a column zero), --active-microbatches and --memory-limit "
        "(write memory_gib of the devices)");
  }
  const bool described = !options.input.model_file.empty();
  if (options.trials > 0 && described && options.trial.program.empty()) {
    throw ConfigError(
        "--trials trains, so it needs the program that trains the described model, after -- at the "
        "end: tessera plan --model-file ... --trials 5 -- ./my_training; or write --model or --job "
        "in place of --model-file");
  }
  if (!options.trial.program.empty() && (options.trials == 0 || !described)) {
    throw ConfigError(
        str("'",
            options.trial.program.front(),
            "': a program after -- is run by trials of a model of --model-file (--trials K), and "
            "by nothing else; a job or a preset is trained by tessera train"));
  }
  if (options.trials > 0 &&
      (search.subsets || search.spare_nodes > 0 || options.input.objective != "time")) {
    throw ConfigError(
        "--trials runs on all ranks at hand, and times alone: leave --leave-out, --spare-nodes and "
        "--objective out, or write the strategy with -o and run it on the hosts that it names");
  }
  if (!options.calibration.empty() && options.input.objective != "time") {
    throw ConfigError("--calibrate corrects times and ranks by them: leave --objective out");
  }
  if (options.input.own_widths &&
      (writes(options) || options.trials > 0 || options.input.model_file.empty())) {
    throw ConfigError(
        "--own-widths: stages of own widths are priced for described models (--model-file) alone, "
        "and the runtime executes none of them; leave it out where a strategy is written or tried");
  }
  const planner::RuntimeAbilities can = planner::runtime_abilities();
  const auto refuse = [&](const char* option, bool asked, bool able) {
    if (asked && !able && (writes(options) || options.trials > 0)) {
      throw ConfigError(
          str(option,
              ": this version prices it but cannot train with it; leave it out "
              "where a strategy is written or tried, or leave -o and --trials "
              "out to see its price"));
    }
  };
  // A job's key says it, a configuration's none.
  if (into_configuration(options)) {
    refuse(
        "--activation-checkpointing",
        options.input.activation_checkpointing,
        can.activation_checkpointing);
  }
  refuse(
      "--shard-optimizer-state",
      options.input.search.shard_optimizer_state,
      can.optimizer_sharding);
}

} // namespace

void check(const PlanRequest& options) {
  refuse_what_cannot_run(options);
  refuse_to_replace_inputs(options);
}

} // namespace tessera::cli
