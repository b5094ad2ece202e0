#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <string>

#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/json/parse.h"
#include "tessera/base/text.h"
#include "tessera/plan/plan.h"
#include "tessera/planner/candidate_text.h"
#include "tessera/planner/candidates_json.h"
#include "tessera/planner/description.h"
#include "tessera/planner/fast_mode.h"
#include "tessera/planner/planned_config.h"
#include "tessera/planner/staged_search.h"
#include "tessera/planner/strategies_csv.h"
#include "tessera/planner/to_config.h"
#include "tessera/planner/trial_factors.h"

#include "cli/command.h"
#include "cli/number_check.h"
#include "cli/plan/plan_request.h"
#include "cli/plan/planned_hosts.h"
#include "cli/plan/planning.h"
#include "cli/plan/run_trials.h"
#include "cli/text_file.h"
#include "cli/train/job_preset.h"
#include "cli/train/job_text.h"
#include "cli/train/planned_job.h"
#include "cli/weights/check_weights.h"
#include "models/objectives/make_objective.h"

namespace tessera::cli {

namespace plan_command {
namespace {

using Options = PlanRequest;

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

const planner::Candidate& first_runnable(
    const planner::SearchResult& result,
    const cost::DescribedModel& model) {
  for (const planner::Candidate& candidate : result.best) {
    if (!planner::not_runnable(candidate, model)) {
      return candidate;
    }
  }
  throw PlanError(
      str("none of the ",
          result.best.size(),
          " best strategies runs in this version: the first, for one, ",
          *planner::not_runnable(result.best.front(), model),
          "; leave out what it names, or take another --method"));
}

/// The job that is planned for: the file, or one made for a preset.
std::string job_text(const Options& options) {
  const PlanningInput& input = options.input;
  if (!input.job_file.empty()) {
    return read_file(input.job_file);
  }
  const models::Preset& preset = models::find_preset(input.preset);
  OrderedJson job;
  job["model"]["name"] = preset.name;
  job["data"]["directory"] = options.data;
  job["data"]["sequence"] = input.sequence > 0 ? input.sequence : preset.sample.sequence;
  job["data"]["batch"] = input.global_batch_size;
  job["precision"] = input.precision.empty() ? "f32" : input.precision;
  return job.dump();
}

/// What a run of the planned job must start from and with how many ranks.
std::string resumable_text(const Options& options) {
  if (options.input.preset.empty() && options.input.job_file.empty()) {
    throw ConfigError(
        "--from compares a checkpoint with a model: write --job or --model in place of "
        "--model-file");
  }
  const models::Preset preset = options.input.job_file.empty()
                                    ? models::find_preset(options.input.preset)
                                    : preset_of(load_job(options.input.job_file));
  return check_resumable(options.from, preset);
}

std::string written_config(
    const Options& options,
    const planner::Candidate& chosen,
    const cost::DescribedModel& model) {
  if (!model.traced()) {
    return planner::to_config_json(chosen, model);
  }
  const std::string written = job_with_plan(job_text(options), chosen, model);
  return options.from.empty() ? written : job_resuming_from(written, options.from);
}

void write_decision(
    const Options& options,
    const planner::Candidate& chosen,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster) {
  if (!options.written_hostfile.empty()) { // the first, since a cluster may have no names
    write_text_file(options.written_hostfile, hostfile_text(chosen, cluster));
  }
  if (!options.config_file.empty()) {
    write_text_file(options.config_file, written_config(options, chosen, model));
  }
  if (!options.parallel_config_file.empty()) {
    write_text_file(options.parallel_config_file, planner::to_config_json(chosen, model));
  }
  if (!options.plan_file.empty()) {
    plans::save_plan(planner::to_plan(chosen, model), options.plan_file);
  }
  bool in_order = true;
  std::string order;
  for (std::size_t i = 0; i < chosen.node_order.size(); ++i) {
    in_order = in_order && chosen.node_order[i] == static_cast<int>(i);
    order += (i == 0 ? "" : ",") + std::to_string(chosen.node_order[i]);
  }
  if (options.json) {
    return; // the list has it: the first that is runnable
  }
  std::printf("written: %s\n", planner::headline(chosen.strategy).c_str());
  if (!options.input.job_file.empty() && !options.config_file.empty()) {
    const auto replaced = replaced_by_plan(job_text(options), chosen, model);
    if (!replaced.empty()) {
      std::printf("the plan replaces what the job says of: %s\n", join(replaced, ", ").c_str());
    }
  }
  if (chosen.leaves_out) {
    std::printf(
        "it has %d ranks; leave all hosts but %s out (idle: %s)\n",
        chosen.strategy.devices(),
        order.c_str(),
        idle_hosts(chosen, cluster).c_str());
  }
  const bool has_hosts = !options.written_hostfile.empty();
  const std::string launch =
      str("tessera launch -n ",
          chosen.strategy.devices(),
          has_hosts ? " --hostfile " + options.written_hostfile : "",
          " -- ");
  if (!options.from.empty() && !options.config_file.empty()) {
    std::printf(
        "go on with: %stessera train %s --resume\n", launch.c_str(), options.config_file.c_str());
  } else if (has_hosts) {
    std::printf("start it with: %sPROGRAM\n", launch.c_str());
  }
  if (!has_hosts && !in_order) {
    std::printf("start the hosts in the order %s\n", order.c_str());
  }
}

/// Which of the search's results are trained: the best, or as many spread over
/// all of them, the best and the worst included.
std::vector<std::size_t> tried_of(const Options& options, const planner::SearchResult& result) {
  const std::size_t count = std::min(result.best.size(), static_cast<std::size_t>(options.trials));
  std::vector<std::size_t> tried;
  for (std::size_t i = 0; i < count; ++i) {
    tried.push_back(
        options.spread_trials && count > 1 ? i * (result.best.size() - 1) / (count - 1) : i);
  }
  return tried;
}

/// Names what was not tried and is faster than the fastest trial, if the others are like it.
void print_faster_untried(
    const planner::SearchResult& result,
    const std::vector<std::size_t>& tried,
    const planner::TrialFactors& factors,
    double measured) {
  for (std::size_t i = 0; i < result.best.size(); ++i) {
    const double seconds = planner::calibrated(result.best[i], factors);
    if (seconds < measured && std::find(tried.begin(), tried.end(), i) == tried.end()) {
      std::printf(
          "not tried, but %.4f s when calibrated by these trials: %zu  %s\n",
          seconds,
          i + 1,
          planner::headline(result.best[i].strategy).c_str());
    }
  }
}

/// Sets the job of trials. Returns the folder of tokens that were made for it, "" for none.
std::filesystem::path set_job(const Options& options, TrialOptions& trial) {
  std::optional<models::LanguageModelSizes> sizes;
  if (!options.input.preset.empty()) {
    sizes = models::language_model_sizes(models::find_preset(options.input.preset).options);
  }
  if (!options.input.preset.empty() && !sizes) {
    throw ConfigError(
        str("--trials: data are made up for models of texts (gpt, llama, bert, t5, ...); plan ",
            options.input.preset,
            " without --trials"));
  }
  std::filesystem::path made_data;
  auto job = job_object(job_text(options), "the job");
  if (options.input.job_file.empty() && options.data.empty()) {
    // Timing needs tokens, not text.
    // Kept jobs name their data, and can be run again.
    made_data = trial.folder.empty() ? std::filesystem::temp_directory_path() /
                                           ("tessera-tokens-" + std::to_string(getpid()))
                                     : std::filesystem::absolute(trial.folder) / "tokens";
    models::TokenTable table;
    table.tokens = sizes.value().vocabulary;
    const auto facts = models::make_objective(
                           models::find_preset(options.input.preset).options,
                           table,
                           job["data"]["sequence"].get<std::int64_t>())
                           ->facts();
    for (const auto& [key, value] : facts.options) {
      if (!value) {
        job["model"]["options"][key] = 1; // any id: no text has to make sense
      }
    }
    // Ids that an objective reserves are among the model's, so that it has the planned size.
    write_random_tokens(
        made_data.string(),
        2 * table.tokens - facts.vocabulary,
        4 * job["data"]["batch"].get<std::int64_t>() *
            (job["data"]["sequence"].get<std::int64_t>() + 1));
    job["data"]["directory"] = made_data.string();
  }
  trial.job = job.dump();
  return made_data;
}

/// Runs the best, prints predicted beside measured, keeps the figures; the
/// index of the winner.
int try_best(
    const Options& options,
    const planner::SearchResult& result,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const cost::Constants& constants) {
  TrialOptions trial = options.trial;
  trial.ranks = cluster.device_count();
  std::filesystem::path made_data;
  if (model.traced()) {
    made_data = set_job(options, trial);
  }
  const std::vector<std::size_t> tried = tried_of(options, result);
  std::vector<planner::Candidate> candidates;
  candidates.reserve(tried.size());
  for (const std::size_t i : tried) {
    candidates.push_back(result.best[i]);
  }
  std::printf(
      "\ntrials of %d steps on %d ranks:\n  rank  predicted s  measured s  "
      "strategy\n",
      trial.steps,
      trial.ranks);
  const auto told = [&](std::size_t i, const planner::Trial& one) {
    const cost::Strategy& strategy = candidates[i].strategy;
    const std::string measured = one.measured_seconds ? str(*one.measured_seconds) : "failed";
    std::printf(
        "  %4zu  %11.4f  %10s  %s  %s%s%s\n",
        tried[i] + 1,
        one.predicted_seconds,
        measured.c_str(),
        planner::headline(strategy).c_str(),
        std::string(text_of(strategy.schedule)).c_str(),
        one.failure.empty() ? "" : ": ",
        one.failure.c_str());
    std::fflush(stdout);
  };
  std::vector<planner::Trial> trials = run_trials(candidates, model, trial, told);
  for (std::size_t i = 0; i < trials.size(); ++i) {
    SimulatedTrial simulated = simulate_trial(candidates[i], model, cluster, constants);
    trials[i].predicted_peak_bytes = std::move(simulated.peak_bytes);
    if (!trial.folder.empty()) {
      write_text_file(
          trial_file(trial.folder, i, ".simulated.json"), timeline::to_json(simulated.timeline));
    }
  }
  if (!made_data.empty() && trial.folder.empty()) {
    std::filesystem::remove_all(made_data);
  }
  if (const auto agreement = planner::rank_agreement(trials)) {
    std::printf("Spearman of predicted and measured: %.3f\n", *agreement);
  }
  const int winner = planner::fastest(trials);
  const planner::TrialFactors factors = planner::fit_factors(candidates, trials);
  // Trials of which none ran calibrate nothing, so that a file of earlier ones stays.
  if (winner >= 0 || !std::filesystem::exists(options.write_calibration)) {
    write_text_file(
        options.write_calibration,
        planner::calibration_json(candidates, trials, factors, model, cluster));
    std::printf(
        "kept in %s: %s\n", options.write_calibration.c_str(), planner::text_of(factors).c_str());
  }
  if (winner < 0) {
    throw PlanError(str("all ", trials.size(), " trials failed; see the lines above"));
  }
  const std::size_t best = tried[static_cast<std::size_t>(winner)];
  std::printf("winner: %zu\n", best + 1);
  print_faster_untried(
      result, tried, factors, *trials[static_cast<std::size_t>(winner)].measured_seconds);
  return static_cast<int>(best);
}

void explain_best(
    const Options& options,
    const planner::SearchResult& result,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster) {
  for (int i = 0; i < std::min(options.explain, static_cast<int>(result.best.size())); ++i) {
    const auto& candidate = result.best[static_cast<std::size_t>(i)];
    std::printf("\n%d. ", i + 1);
    print(planner::explain(candidate, model, cluster));
    if (const auto reason = planner::not_runnable(candidate, model)) {
      std::printf(
          "  priced but not runnable: %s (--runnable searches only what this version trains)\n",
          reason->c_str());
    }
  }
}

void run(const Options& options) {
  if (options.schema) {
    print(planner::schema());
    return;
  }
  // What is written must run; what is tried runs on the hosts as they are.
  PlanningInput input = options.input;
  input.search.runnable_only = input.search.runnable_only || writes(options) || options.trials > 0;
  input.search.keep_node_order = input.search.keep_node_order || options.trials > 0;
  input.writes_job = !into_configuration(options);
  check(options);
  const cost::Cluster cluster = cluster_of(input);
  const std::string resumable = options.from.empty() ? "" : resumable_text(options);
  const cost::DescribedModel model = model_of(input, cluster);
  planner::SearchOptions search = search_options(input, model, cluster);
  if (!options.price.empty()) {
    print(planner::price_table(
        read_file(options.price), options.price, model, cluster, search.constants));
    return;
  }
  constexpr int kAll = 100000;
  search.keep =
      options.spread_trials ? kAll : std::max({search.keep, options.explain, options.trials});
  if (options.trials > 0 || !options.calibration.empty()) {
    // Trials may bring one forward that is not among the first; each that is kept is simulated.
    constexpr int kReRanked = 50;
    search.keep = std::max(search.keep, kReRanked);
  }
  planner::SearchResult result = search_with_progress(model, cluster, search);
  if (!options.calibration.empty()) {
    const planner::TrialFactors factors = planner::read_factors(options.calibration);
    planner::calibrate(result, factors);
    std::printf(
        "calibrated by %s: %s\n", options.calibration.c_str(), planner::text_of(factors).c_str());
  }
  planner::SearchResult shown = result;
  shown.best.erase(
      shown.best.begin() + std::min(
                               static_cast<std::ptrdiff_t>(result.best.size()),
                               static_cast<std::ptrdiff_t>(std::max(
                                   {options.input.search.keep, options.explain, options.trials}))),
      shown.best.end());
  if (options.json) {
    print(planner::to_json(
        shown, model, cluster, planner::fast_mode_seconds(shown, model, cluster, search)));
    if (writes(options)) {
      write_decision(options, first_runnable(result, model), model, cluster);
    }
    return;
  }
  std::printf(
      "%s on %s, global batch size %d: %d combinations of degrees and "
      "microbatch sizes\n",
      model.name.c_str(),
      cluster.name.c_str(),
      model.global_batch_size,
      result.considered);
  print(planner::summary(shown, model));
  print(planner::fast_mode_hint(planner::fast_mode_seconds(shown, model, cluster, search)));
  print(planner::front_text(shown, cluster));
  if (input.own_widths) {
    print(planner::staged_text(
        planner::search_staged(model, cluster, search, result.best.front().cost.seconds), cluster));
  }
  if (!resumable.empty()) {
    print(resumable + "\n");
  }
  explain_best(options, result, model, cluster);
  const planner::Candidate* chosen = nullptr;
  if (options.trials > 0) {
    const int winner = try_best(options, result, model, cluster, search.constants);
    chosen = &result.best[static_cast<std::size_t>(winner)];
  }
  if (writes(options)) {
    const planner::Candidate& written = chosen != nullptr ? *chosen : first_runnable(result, model);
    write_decision(options, written, model, cluster);
  }
}

void set_up(CLI::App& app) {
  auto options = std::make_shared<Options>();
  add_planning_options(app, options->input);
  auto* schema = app.add_flag("--schema", options->schema, "print the form of both files and stop");
  auto* price = app.add_option(
      "--price", options->price, "price the strategies of this CSV file instead of searching");
  auto* json = app.add_flag("--json", options->json, "print the best strategies as JSON");
  app.add_option("--explain", options->explain, "show the parts of the K best")
      ->check(CLI::Range(0, 100000));
  app.add_option(
      "-o,--output",
      options->config_file,
      "write the best strategy that runs: for --model and --job the job that "
      "tessera train runs, for --model-file the library's configuration");
  app.add_option(
      "--library-config",
      options->parallel_config_file,
      "write the configuration that tessera::init reads");
  app.add_option("--plan-file", options->plan_file, "also write it as a plan file");
  app.add_option(
      "--write-hostfile",
      options->written_hostfile,
      "write the hosts that the best strategy that runs uses, in its order, for tessera launch");
  app.add_option(
      "--data",
      options->data,
      "with --model: the data folder of the job that is written; trials "
      "without one use random tokens");
  app.add_option(
      "--from",
      options->from,
      "the checkpoints of a job that goes on under the plan, after a host has left, say: whether "
      "they load is checked, and the job that is written resumes from them");
  auto* widths = app.add_flag(
      "--own-widths",
      options->input.own_widths,
      "of described models: also strategies whose stages have devices, degrees, samples and "
      "recomputation of their own, which the runtime does not execute");
  auto* trials = app.add_option(
                        "--trials",
                        options->trials,
                        "run the K best for a few steps on the ranks at hand and take the "
                        "fastest")
                     ->check(CLI::Range(0, 1000));
  app.add_flag(
      "--spread-trials",
      options->spread_trials,
      "try K spread over all that fit, not the K best: to see how good "
      "predictions are");
  app.add_option("--trial-steps", options->trial.steps, "steps of a trial")
      ->check(CLI::Range(3, 100000))
      ->capture_default_str();
  app.add_option(
         "--trial-timeout",
         options->trial.timeout_seconds,
         "seconds after which a trial has failed")
      ->check(positive_number())
      ->capture_default_str();
  app.add_option(
         "--keep-trials",
         options->trial.folder,
         "a folder for the job, log and timeline of every trial, and for its simulated timeline")
      ->needs(trials);
  app.add_option("--hostfile", options->trial.hostfile, "hosts of trials, as for launch");
  app.add_option(
         "--calibration-file",
         options->write_calibration,
         "where trials keep predicted and measured seconds")
      ->capture_default_str();
  auto* calibrate = app.add_option(
      "--calibrate",
      options->calibration,
      "rank by seconds that such a file corrects, of this or another model on the same machine");
  app.add_option(
      "program",
      options->trial.program,
      "after --: the program that trains the model of --model-file in trials, with its arguments");
  for (CLI::Option* other : {schema, price, trials, calibrate, widths}) {
    json->excludes(other);
  }
  app.callback([options] { run(*options); });
}

const RegisterCommand registered({
    "plan",
    "find the strategy for a model and a cluster",
    set_up,
});

} // namespace
} // namespace plan_command

} // namespace tessera::cli
