#include "cli/train/check.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/host.h"
#include "tessera/plan/from_config.h"
#include "tessera/planner/description.h"
#include "tessera/train/checkpoints.h"

#include "cli/formatted.h"
#include "cli/train/checkpoint_folder.h"
#include "cli/train/forecast.h"
#include "cli/train/job_preset.h"
#include "cli/train/progress.h"
#include "cli/weights/check_weights.h"
#include "models/data/data_folder.h"
#include "models/data/document_begins.h"
#include "models/data/mixture.h"
#include "models/data/sampler.h"
#include "models/data/token_file.h"
#include "models/data/tokenizer.h"
#include "models/registry.h"

namespace tessera::cli {

namespace {

constexpr double kMib = 1024.0 * 1024.0;

int of_environment(const char* name, int otherwise) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread changes the environment
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::max(0, std::atoi(value));
}

// "1:02:03"
std::string clock_text(double seconds) {
  const auto whole = static_cast<long long>(seconds + 0.5);
  char text[64];
  std::snprintf(
      text, sizeof(text), "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
  return text;
}

/// What was found, so that a job is mended in one go.
class Findings {
 public:
  /// Runs one check; whether it found nothing.
  bool check(const std::function<void()>& what) {
    try {
      what();
      return true;
    } catch (const Error& error) {
      errors_.emplace_back(error.what());
      return false;
    }
  }

  void throw_any(const std::string& origin) const {
    if (errors_.empty()) {
      return;
    }
    std::string text = origin + ": ";
    for (std::size_t i = 0; i < errors_.size(); ++i) {
      text += (i == 0 ? "" : "\n") + errors_[i];
    }
    throw ConfigError(text);
  }

 private:
  std::vector<std::string> errors_;
};

struct Known {
  models::TokenTable table;
  std::uint64_t train_tokens = 0;
  /// How many tokens each file holds.
  std::vector<std::pair<std::string, std::uint64_t>> train_files;
  std::vector<std::pair<std::string, std::uint64_t>> validation_files;
  std::optional<JobModel> model;
  std::string start_warning; // of the weights that it begins with
  topology::Degrees degrees;
};

/// Whether nothing was found.
bool check_folder(const Job& job, const std::string& folder, Findings& findings, Known& known) {
  bool whole = findings.check([&] {
    const data::TokenDataset tokens(folder + "/" + data::kTrainFile);
    known.table = models::read_token_table(folder, tokens.vocab_size());
    known.train_tokens += tokens.size();
    known.train_files.emplace_back(tokens.path(), tokens.size());
  });
  whole = findings.check([&] {
    const data::TokenDataset tokens(folder + "/" + data::kValidationFile);
    known.validation_files.emplace_back(tokens.path(), tokens.size());
    if (known.table.tokens > 0 && tokens.vocab_size() != known.table.tokens) {
      throw ConfigError(
          str(tokens.path(),
              " has a vocabulary of ",
              tokens.vocab_size(),
              " tokens, the training data of ",
              known.table.tokens,
              "; prepare both together"));
    }
  }) && whole;
  if (!job.sample.prompt.empty()) {
    whole =
        findings.check([&] { data::Tokenizer tokenizer(data::tokenizer_path(folder)); }) && whole;
  }
  return whole;
}

void check_data(const Job& job, Findings& findings, Known& known) {
  const auto folders = folders_of(job);
  bool whole = true;
  for (const data::MixturePart& part : folders) {
    whole = check_folder(job, part.directory, findings, known) && whole;
  }
  if (whole) {
    findings.check([&] {
      const auto train = data::open_parts(folders, data::kTrainFile, false);
      const auto validation = data::open_parts(folders, data::kValidationFile, false);
      data::hashes_of_parts(folders, train, validation);
      if (job.data.reset_attention_mask) {
        const auto check = [&](const auto& tokens, const char* file) {
          data::open_indexes(folders, tokens, file, kResetAttentionMaskKey);
        };
        check(train, data::kTrainDocumentsFile);
        if (job.validation.every > 0) {
          check(validation, data::kValidationDocumentsFile);
        }
      }
    });
  }
}

/// Whether the data hold one sample of the model's.
void check_samples(const Job& job, Findings& findings, const Known& known) {
  if (!known.model || known.model->objective == nullptr) {
    return; // why is among the findings
  }
  const data::Window window = known.model->objective->facts().window;
  const auto check = [&](const auto& files) {
    for (const auto& [path, tokens] : files) {
      findings.check([&, &path = path, &tokens = tokens] { // clang 14 asks for names
        data::count_samples(tokens, window, path);
      });
    }
  };
  check(known.train_files);
  if (job.validation.every > 0) {
    check(known.validation_files);
  }
}

void check_layout(const Job& job, int ranks, Findings& findings, Known& known) {
  findings.check([&] {
    known.degrees = plans::degrees(job.parallel, ranks);
    plans::plan_from_config(job.parallel, ranks);
    const int bring =
        known.degrees.reduced_data * (job.parallel.prescaled_batch ? 1 : known.degrees.tensor);
    const std::int64_t share = static_cast<std::int64_t>(bring) * job.parallel.microbatches;
    if (job.parallel.replica_samples.empty() && job.data.batch % share != 0) {
      throw ConfigError(
          str("'data.batch' is ",
              job.data.batch,
              "; on ",
              ranks,
              " ranks, ",
              bring,
              " of them with samples of their own, ",
              job.parallel.microbatches,
              " microbatches need a multiple of ",
              share));
    }
  });
}

// Ranks of this machine, the fullest stages first: where they go is not known.
double bytes_here(const Forecast& forecast, const topology::Degrees& degrees, double program) {
  std::vector<double> ranks;
  for (const StageBytes& stage : forecast.stages) {
    ranks.insert(
        ranks.end(),
        static_cast<std::size_t>(degrees.tensor) * static_cast<std::size_t>(degrees.reduced_data),
        stage.total() + program);
  }
  std::sort(ranks.rbegin(), ranks.rend());
  const auto here = static_cast<std::size_t>(
      of_environment("OMPI_COMM_WORLD_LOCAL_SIZE", static_cast<int>(ranks.size())));
  double sum = 0;
  for (std::size_t i = 0; i < std::min(here, ranks.size()); ++i) {
    sum += ranks[i];
  }
  return sum;
}

bool recomputes(const Job& job) {
  return job.activation_checkpointing != "none" || job.parallel.checkpoint_attentions;
}

/// What a job that recomputes activations needs at least: the forecast counts those that the
/// forward makes.
Forecast least_of(const Job& job, Forecast forecast) {
  for (StageBytes& stage : forecast.stages) {
    stage.activations = recomputes(job) ? 0 : stage.activations;
  }
  return forecast;
}

std::string memory_text(
    const Job& job,
    const Forecast& forecast,
    const topology::Degrees& degrees,
    Findings& findings) {
  const auto program = static_cast<double>(resident_bytes());
  std::string text = formatted_line(
      "memory of a rank in MiB, about:\n%-13s %10s %9s %9s %11s %7s %8s",
      "pipeline rank",
      "parameters",
      "gradients",
      "optimizer",
      "activations",
      "program",
      "together");
  for (std::size_t i = 0; i < forecast.stages.size(); ++i) {
    const StageBytes& stage = forecast.stages[i];
    text += formatted_line(
        "%-13zu %10.1f %9.1f %9.1f %11.1f %7.1f %8.1f",
        i,
        stage.parameters / kMib,
        stage.gradients / kMib,
        stage.optimizer / kMib,
        stage.activations / kMib,
        program / kMib,
        (stage.total() + program) / kMib);
  }
  const HostMemory memory = host_memory();
  const auto there = static_cast<double>(memory.group_limit.value_or(memory.total));
  const double needed = bytes_here(forecast, degrees, program);
  const double least = bytes_here(least_of(job, forecast), degrees, program);
  findings.check([&] {
    if (least > there) {
      throw ConfigError(
          str(formatted_line(
                  "model '%s' needs %s %.1f GiB on this machine, which has %.1f GiB;",
                  model_name(job).c_str(),
                  recomputes(job) ? "at least" : "about",
                  least / kMib / 1024,
                  there / kMib / 1024),
              "take a smaller model or data.batch, more microbatches, or more machines (and check "
              "under tessera launch there)\n",
              text));
    }
  });
  if (recomputes(job)) {
    text +=
        "activations are counted as if all were kept; what is recomputed in the backward need not "
        "be, so this is the most\n";
  }
  return text + formatted_line(
                    "this machine needs %.2f GiB of its %.2f GiB",
                    needed / kMib / 1024,
                    there / kMib / 1024);
}

std::string time_text(
    const Job& job,
    const Forecast& forecast,
    const topology::Degrees& degrees,
    const CheckOptions& options) {
  if (options.cluster_file.empty()) {
    return "time: unknown; measure the machine with tessera probe and name its file with "
           "--cluster-file\n";
  }
  const cost::Cluster cluster = planner::load_cluster(options.cluster_file);
  try {
    const double step =
        step_seconds(job, forecast, degrees, cluster) * static_cast<double>(job.accumulation);
    return formatted_line(
               "time: about %s for %lld steps of %.3f s, without validation and checkpoints; from "
               "the "
               "operators of the traced model",
               clock_text(step * static_cast<double>(job.steps)).c_str(),
               static_cast<long long>(job.steps),
               step) +
           str("  and the speeds in ", options.cluster_file, ", executed event by event\n") +
           (recomputes(job) ? "  without what is computed again in the backward\n" : "");
  } catch (const ConfigError& error) {
    return str("time: unknown: ", error.what(), "\n");
  } catch (const PlanError& error) {
    return str("time: unknown: ", error.what(), "\n");
  }
}

void check_folder(const Job& job, std::int64_t parameters, Findings& findings) {
  if (job.checkpoint.directory.empty()) {
    return;
  }
  findings.check([&] {
    const std::string wrong =
        judge_future_folder(job.checkpoint.directory, checkpoint_bytes(job, parameters));
    if (!wrong.empty()) {
      throw ConfigError(wrong);
    }
  });
}

/// What a run without --resume would refuse, and one with it goes on from.
std::string folder_text(const Job& job) {
  const std::string& folder = job.checkpoint.directory;
  if (folder.empty() || !checkpoint_exists(folder)) {
    return "";
  }
  return str(
      "'checkpoint.directory' ",
      folder,
      " holds checkpoints: the job goes on from them "
      "with --resume, and does not run without\n");
}

std::string objective_text(const models::ObjectiveFacts& facts) {
  std::string text = formatted_line(
      "objective: %s, %lld targets of %lld tokens in a sample",
      facts.name.c_str(),
      static_cast<long long>(facts.targets),
      static_cast<long long>(facts.window.length));
  for (const std::string& note : facts.notes) {
    text += note + "\n";
  }
  return text;
}

} // namespace

bool is_first_process() {
  return of_environment("OMPI_COMM_WORLD_RANK", 0) == 0;
}

std::string check_job(const Job& job, const std::string& origin, const CheckOptions& options) {
  Findings findings;
  Known known;
  check_data(job, findings, known);
  findings.check([&] { known.model = job_model(job, known.table); });
  check_samples(job, findings, known);
  if (known.model && !job.model.init_from.empty()) {
    findings.check([&] {
      const Weights weights(job.model.init_from);
      known.start_warning = check_tokenizer(job, weights);
      check_weights(weights, known.model->preset);
    });
  }
  const int least = job.parallel.pipeline_parallel_degree * job.parallel.tensor_parallel_degree;
  const int ranks =
      options.ranks > 0 ? options.ranks : of_environment("OMPI_COMM_WORLD_SIZE", least);
  const bool decided = job.strategy != "auto";
  if (decided) {
    check_layout(job, ranks, findings, known);
  }
  if (known.model) {
    check_folder(job, known.model->preset.parameters, findings);
  }
  findings.throw_any(origin);

  const models::Preset& preset = known.model->preset;
  const models::ObjectiveFacts& facts = known.model->objective->facts();
  std::string text = origin + " is a valid job\n" + folder_text(job);
  if (!known.start_warning.empty()) {
    text += str("warning: ", known.start_warning, "\n");
  }
  text += str(preset.name, " of ", preset.parameters, " parameters, ", job.precision);
  const double tokens =
      static_cast<double>(job.steps) *
      static_cast<double>(job.accumulation * job.data.batch * facts.window.stride);
  std::string data = formatted_line(
      "data: %llu tokens, of which %lld steps read %.0f (%.2f times all)",
      static_cast<unsigned long long>(known.train_tokens),
      static_cast<long long>(job.steps),
      tokens,
      tokens / static_cast<double>(known.train_tokens));
  data += objective_text(facts);
  if (!decided) {
    return text + "\n" + data +
           "memory of a rank: unknown, \"strategy\": \"auto\" decides it on the ranks at the "
           "start\ntime: unknown for the same reason\n";
  }
  text +=
      str(", on ",
          ranks,
          " ranks: ",
          known.degrees.pipeline,
          " pipeline x ",
          known.degrees.tensor,
          " tensor x ",
          known.degrees.reduced_data,
          " replicas, ",
          job.parallel.microbatches,
          " microbatches\n");
  text += data;
  std::optional<Forecast> expected;
  findings.check([&] { expected = forecast(job, preset, known.degrees); });
  findings.throw_any(origin);
  for (const std::string& warning : expected->warnings) {
    text += str("warning: ", warning, "\n");
  }
  text += memory_text(job, *expected, known.degrees, findings);
  findings.throw_any(origin);
  return text + time_text(job, *expected, known.degrees, options);
}

} // namespace tessera::cli
