#include "cli/plan/run_trials.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>

#include <unistd.h>

#include "tessera/base/files.h"
#include "tessera/base/json/parse.h"
#include "tessera/base/statistics.h"
#include "tessera/config/launcher.h"
#include "tessera/optim/step_seconds.h"
#include "tessera/planner/planned_config.h"
#include "tessera/planner/to_config.h"
#include "tessera/report/run_log.h"
#include "tessera/simulator/simulate.h"

#include "cli/interruption.h"
#include "cli/launch/run_ranks.h"
#include "cli/train/job_text.h"
#include "cli/train/planned_job.h"
#include "models/data/data_folder.h"
#include "models/data/files.h"
#include "models/data/token_file.h"

namespace tessera::cli {

using planner::Trial;

namespace {

namespace fs = std::filesystem;

// A folder of its own, removed at the end.
class WorkFolder {
 public:
  WorkFolder() {
    std::string name =
        (fs::temp_directory_path() / str("tessera-trials-", ::getpid(), "-XXXXXX")).string();
    if (mkdtemp(name.data()) == nullptr) {
      throw Error(str("trials: cannot make a folder like ", name));
    }
    path_ = name;
  }
  ~WorkFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  std::string file(const std::string& name) const {
    return (path_ / name).string();
  }

 private:
  fs::path path_;
};

/// Static mode records one step of a trial, so that the steps that are timed repeat it, as nearly
/// all steps of a run do.
void record_once(OrderedJson& parallel) {
  if (parallel.value("static_mode", false)) {
    parallel["static_mode_steps"] = 1;
  }
}

std::string trial_config(const planner::Candidate& candidate, const cost::DescribedModel& model) {
  auto config = OrderedJson::parse(planner::to_config_json(candidate, model));
  record_once(config);
  return config.dump();
}

std::string trial_job(
    const planner::Candidate& candidate,
    const cost::DescribedModel& model,
    const TrialOptions& options) {
  auto job = job_object(options.job, "the job");
  // A trial leaves nothing behind.
  for (const char* section : {"checkpoint", "validation", "sample"}) {
    job.erase(section);
  }
  job["log_every"] = 1;
  const std::int64_t steps = job.value("steps", std::int64_t{0});
  job["steps"] = std::max<std::int64_t>(steps, options.steps);
  auto planned = OrderedJson::parse(job_with_plan(job.dump(), candidate, model));
  record_once(planned["parallel"]);
  return planned.dump(2);
}

struct TrialInterrupted {};

/// Returns the seconds of updates that a program has written so far (optim::StepSeconds), with
/// their numbers. Several optimizers count apart, and each says how long ago its own update before
/// was, so all of them take the time of an iteration.
std::vector<std::pair<int, double>> seconds_of_updates(const std::string& text) {
  std::vector<std::pair<int, double>> seconds;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto begin = line.find(optim::kStepSecondsLine);
    const auto colon = line.rfind(": ");
    if (begin != std::string::npos && colon != std::string::npos && colon > begin) {
      const char* number = line.c_str() + begin + std::strlen(optim::kStepSecondsLine);
      seconds.emplace_back(std::atoi(number), std::strtod(line.c_str() + colon + 2, nullptr));
    }
  }
  return seconds;
}

std::string own_program() {
  return fs::read_symlink("/proc/self/exe").string();
}

/// Returns the command that launches a program on the ranks of a trial, with variables such as
/// "NAME=value" in its environment, and ends what hangs. What it writes goes to the file `errors`.
std::vector<std::string> trial_command(
    const TrialOptions& options,
    const std::string& errors,
    const std::vector<std::string>& variables,
    const std::vector<std::string>& program) {
  // The shell only redirects.
  std::vector<std::string> command = {
      "/bin/sh",
      "-c",
      "exec timeout -k 10 \"$0\" \"$@\" > /dev/null 2> " + errors,
      std::to_string(options.timeout_seconds),
      "env"};
  command.insert(command.end(), variables.begin(), variables.end());
  command.insert(command.end(), {own_program(), "launch", "-n", std::to_string(options.ranks)});
  if (!options.hostfile.empty()) {
    command.insert(command.end(), {"--hostfile", options.hostfile});
  }
  command.emplace_back("--");
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

/// Trains a few steps with a program that is not ours.
Trial run_program(
    const planner::Candidate& candidate,
    const cost::DescribedModel& model,
    const TrialOptions& options,
    const WorkFolder& folder) {
  constexpr int kWarmUp = 2; // updates; in fast mode the second one's step is recorded
  Trial trial;
  trial.predicted_seconds = candidate.seconds();
  const std::string errors = folder.file("errors.txt");
  fs::remove(errors);
  const std::vector<std::string> command = trial_command(
      options,
      errors,
      {str(config::kLauncherVariable, "=", trial_config(candidate, model)),
       str(optim::kStepSecondsVariable, "=1")},
      options.program);
  const auto written = [&] { return try_read_file(errors).bytes.value_or(""); };
  const auto done = [&] {
    int last = 0;
    for (const auto& [update, seconds] : seconds_of_updates(written())) {
      last = std::max(last, update);
    }
    return last;
  };
  const auto enough = [&] { return done() >= options.steps; };
  const RunOutcome outcome = run_ranks(command, std::chrono::seconds(10), enough);
  if (outcome.asked_to_end) {
    throw TrialInterrupted{};
  }
  std::vector<double> measured;
  for (const auto& [update, seconds] : seconds_of_updates(written())) {
    if (update > kWarmUp) {
      measured.push_back(seconds);
    }
  }
  if (!enough() && outcome.exit_status != 0) {
    trial.failure = reason_of_failure(written(), outcome.exit_status);
  } else if (measured.empty()) {
    trial.failure =
        str("it ended after fewer than ",
            kWarmUp + 1,
            " calls of DistributedOptimizer::step, of which a trial takes the time");
  } else {
    trial.measured_seconds = median(std::move(measured));
  }
  return trial;
}

Trial run_one(
    const planner::Candidate& candidate,
    const cost::DescribedModel& model,
    const TrialOptions& options,
    std::size_t index,
    const WorkFolder& folder) {
  constexpr int kWarmUp = 2;
  Trial trial;
  trial.predicted_seconds = candidate.seconds();
  const bool keeps = !options.folder.empty();
  const auto kept = [&](const char* ending) { return trial_file(options.folder, index, ending); };
  const std::string job = keeps ? kept(".json") : folder.file("job.json");
  data::write_file(job, trial_job(candidate, model, options));
  const std::string log = keeps ? kept(".jsonl") : folder.file("log.jsonl");
  const std::string errors = folder.file("errors.txt");
  fs::remove(log);
  std::vector<std::string> program = {
      own_program(), "train", job, "--steps", std::to_string(options.steps), "--log", log};
  if (keeps) {
    program.insert(program.end(), {"--timeline", kept(".timeline.json")});
  }
  const std::vector<std::string> command = trial_command(options, errors, {}, program);
  const RunOutcome outcome = run_ranks(command, std::chrono::seconds(10));
  if (outcome.asked_to_end) {
    throw TrialInterrupted{};
  }
  if (outcome.exit_status != 0) {
    trial.failure =
        reason_of_failure(try_read_file(errors).bytes.value_or(""), outcome.exit_status);
    return trial;
  }
  std::vector<double> seconds;
  for (const report::StepRecord& step : report::read_run_log(log).steps) {
    if (step.step > kWarmUp) {
      seconds.push_back(step.step_seconds);
      std::vector<double>& peaks = trial.measured_peak_bytes;
      peaks.resize(step.peak_bytes.size());
      for (std::size_t rank = 0; rank < peaks.size(); ++rank) {
        peaks[rank] = std::max(peaks[rank], static_cast<double>(step.peak_bytes[rank]));
      }
    }
  }
  if (seconds.empty()) {
    trial.failure = str("it logged no step after the first ", kWarmUp);
    return trial;
  }
  trial.measured_seconds = median(std::move(seconds));
  return trial;
}

} // namespace

std::string reason_of_failure(const std::string& log, int status) {
  constexpr int kTimedOut = 124; // of timeout(1)
  if (status == kTimedOut) {
    return "it did not end in time";
  }
  std::istringstream lines(log);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    for (const char* sign : {"bad_alloc", "can't allocate memory", "out of memory", "signal 9"}) {
      if (line.find(sign) != std::string::npos) {
        return "out of memory: " + line;
      }
    }
    const bool own = line.rfind("tessera: ", 0) == 0;
    if (own && line.find("ended with exit status") == std::string::npos) {
      last = line;
    }
  }
  return last.empty() ? str("exit status ", status) : last;
}

std::string trial_file(const std::string& folder, std::size_t index, const std::string& ending) {
  return (fs::path(folder) / str("trial_", index + 1, ending)).string();
}

SimulatedTrial simulate_trial(
    const planner::Candidate& candidate,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const cost::Constants& constants) {
  simulator::SimulationResult result =
      simulator::simulate(model, cluster, candidate.strategy, {.constants = constants});
  SimulatedTrial simulated;
  const std::vector<int> run_ranks = simulator::run_ranks(candidate.strategy);
  simulated.peak_bytes.resize(run_ranks.size());
  for (std::size_t rank = 0; rank < run_ranks.size(); ++rank) {
    simulated.peak_bytes[static_cast<std::size_t>(run_ranks[rank])] =
        result.memory_high_water[rank];
  }
  simulated.timeline = std::move(result.timeline);
  return simulated;
}

std::vector<Trial> run_trials(
    const std::vector<planner::Candidate>& candidates,
    const cost::DescribedModel& model,
    const TrialOptions& options,
    const std::function<void(std::size_t, const Trial&)>& told) {
  const WorkFolder folder;
  if (!options.folder.empty()) {
    fs::create_directories(options.folder);
  }
  const Interruption between_trials; // while a trial runs, run_ranks takes the signals
  std::vector<Trial> trials;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    try {
      if (between_trials.asked()) {
        throw TrialInterrupted{};
      }
      trials.push_back(
          options.program.empty() ? run_one(candidates[i], model, options, i, folder)
                                  : run_program(candidates[i], model, options, folder));
    } catch (const TrialInterrupted&) {
      if (planner::fastest(trials) < 0) {
        throw Error("trials: interrupted before any had finished");
      }
      std::fprintf(
          stderr,
          "tessera: interrupted after %zu of %zu trials; the fastest of these "
          "counts\n",
          trials.size(),
          candidates.size());
      break;
    }
    told(i, trials.back());
  }
  return trials;
}

void write_random_tokens(const std::string& folder, std::int64_t vocabulary, std::int64_t tokens) {
  fs::create_directories(folder);
  std::mt19937_64 random(1);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < tokens; ++i) {
    ids.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocabulary)));
  }
  for (const char* name : {data::kTrainFile, data::kValidationFile}) {
    data::write_token_file(folder + "/" + name, ids, vocabulary);
  }
  data::write_file(folder + "/" + data::kJsonTokenizerFile, "{}\n"); // no token has a name
}

} // namespace tessera::cli
