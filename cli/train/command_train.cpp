#include <cstdio>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/tessera.h"

#include "cli/agreed_error.h"
#include "cli/allocator.h"
#include "cli/command.h"
#include "cli/number_check.h"
#include "cli/same_file.h"
#include "cli/train/auto_strategy.h"
#include "cli/train/check.h"
#include "cli/train/tensor_memory.h"
#include "cli/train/trainer.h"

namespace tessera::cli {

namespace train_command {
namespace {

struct Options {
  std::string job;
  std::int64_t steps = 0;
  std::vector<std::string> settings;
  bool check = false;
  bool replan = false;
  CheckOptions check_options;
  TrainArguments train;
};

void run(const Options& options) {
  const TrainArguments& asked = options.train;
  if (!asked.log.empty() && !asked.timeline.empty() && same_file(asked.log, asked.timeline)) {
    throw ConfigError(str("--log and --timeline are both '", asked.log, "'; name two files"));
  }
  Job job = load_job(options.job, options.settings);
  if (options.steps > 0) {
    // The learning rate's course is that of the job: a run cut short can be
    // taken up again.
    job.steps = std::min(job.steps, options.steps);
  }
  if (options.check) {
    if (is_first_process()) {
      std::fputs(check_job(job, options.job, options.check_options).c_str(), stdout);
    }
    return;
  }
  const std::string& cluster_file = options.check_options.cluster_file;
  if (job.strategy == "auto") {
    choose_strategy(
        job, {.keep_plan = options.train.resume && !options.replan, .cluster_file = cluster_file});
  } else if (!cluster_file.empty()) {
    throw ConfigError(
        "--cluster-file is for --check and for a job with \"strategy\": \"auto\"; "
        "this job says its strategy itself");
  }
  keep_freed_memory();
  count_tensor_bytes();
  init(job.parallel);
  job.parallel = config_in_force(); // a launcher may have changed it
  int status = 1;
  {
    Trainer trainer(std::move(job), options.train);
    try {
      status = trainer.run();
    } catch (const CheckpointError& error) {
      // Parts of a pipeline load at the first step. What they find, a job that is started again
      // would find as well.
      trainer.failed(error.what());
      throw ConfigError(error.what());
    } catch (const AgreedError& error) {
      trainer.finish_pending_save();
      trainer.failed(error.what());
      throw;
    } catch (const std::exception& error) {
      trainer.failed(error.what());
      throw;
    }
  }
  shutdown();
  if (status != 0) {
    throw CLI::RuntimeError(status); // why has been said
  }
}

void set_up(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("job", options->job, "the job's JSON file")->required()->check(CLI::ExistingFile);
  app.add_option("--steps", options->steps, "stop after this many steps of the job")
      ->check(positive_number());
  app.add_flag(
      "--resume",
      options->train.resume,
      "go on from the newest checkpoint of the job, if there is one");
  app.add_flag(
      "--accept-other-data",
      options->train.accept_other_data,
      "with --resume: go on although the data folder holds other data than the checkpoint's");
  app.add_flag(
      "--replan",
      options->replan,
      "with --resume and strategy auto: choose the layout anew instead of the checkpoint's");
  app.add_option("--log", options->train.log, "write a JSONL log");
  app.add_option("--timeline", options->train.timeline, "write the events of the last steps");
  app.add_option(
         "--set",
         options->settings,
         "KEY=VALUE over the job file, as data.batch=8; VALUE is JSON or a word; may be repeated")
      ->take_all()
      ->allow_extra_args(false);
  auto* check = app.add_flag(
      "--check",
      options->check,
      "check all that needs no training; say what memory and time it takes");
  app.add_option("--ranks", options->check_options.ranks, "check for so many ranks")
      ->check(CLI::Range(1, 1000000))
      ->needs(check);
  app.add_option(
         "--cluster-file",
         options->check_options.cluster_file,
         "a cluster that tessera probe measured: with --check to say how long the job takes, with "
         "strategy auto in place of measuring the ranks")
      ->check(CLI::ExistingFile);
  app.callback([options] { run(*options); });
}

const RegisterCommand registered({
    "train",
    "train a model as a job file says; run it on several ranks with launch",
    set_up,
});

} // namespace
} // namespace train_command

} // namespace tessera::cli
