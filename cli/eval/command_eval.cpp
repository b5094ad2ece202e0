#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include <torch/torch.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/hash.h"
#include "tessera/base/json/parse.h"
#include "tessera/tessera.h"

#include "cli/allocator.h"
#include "cli/command.h"
#include "cli/number_check.h"
#include "cli/weights/start_from.h"
#include "models/data/data_folder.h"
#include "models/data/document_begins.h"
#include "models/data/sampler.h"
#include "models/data/token_file.h"
#include "models/layers.h"
#include "models/objectives/load.h"
#include "models/objectives/make_objective.h"

namespace tessera::cli {

namespace eval_command {
namespace {

constexpr const char* kResetAttentionMask = "--reset-attention-mask";

struct Options {
  std::string weights;
  std::string data;
  std::string split = "validation";
  std::string parallel;
  std::int64_t sequence = 0;
  std::int64_t batch = 8;
  std::int64_t samples = 0;
  bool reset_attention_mask = false;
  bool reset_position_ids = false;
  bool json = false;
};

/// Sum of the losses of tokens, and how many.
struct Sum {
  double loss = 0;
  double tokens = 0;
};

config::Config parallel_of(const Options& options) {
  if (!options.parallel.empty()) {
    return config::parse_config(read_file(options.parallel), options.parallel);
  }
  config::Config parallel;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread changes the environment
  const char* ranks = std::getenv("OMPI_COMM_WORLD_SIZE");
  parallel.pipeline_parallel_degree = ranks == nullptr ? 1 : std::max(1, std::atoi(ranks));
  return parallel;
}

/// Reads every sample once. Of a last batch that is not full, the rest repeats its first sample
/// with targets that do not count.
class Evaluation {
 public:
  Evaluation(const Options& options, Weights weights)
      : options_(options),
        weights_(weights.path()),
        preset_(preset_beside(weights)),
        tokens_(
            options.data + "/" +
            (options.split == "train" ? data::kTrainFile : data::kValidationFile)) {
    check_folder();
    check_tokenizer(weights);
    if (options.reset_attention_mask) {
      open_documents();
    }
    if (!models::language_model_sizes(preset_.options)) {
      throw ConfigError(
          str(weights_,
              " is of the family ",
              preset_.family,
              ", which reads no texts; a validation of tessera train says its loss"));
    }
    const auto sizes = models::language_model_sizes(preset_.options).value();
    const bool any_length = sizes.positions_key[0] == '\0';
    sequence_ = options.sequence > 0 ? options.sequence : sizes.positions;
    if (any_length && options.sequence == 0) {
      throw ConfigError(
          str("--sequence is missing: a model of the family ",
              preset_.family,
              " has no longest one; write the data.sequence that it was trained with"));
    }
    if (!any_length && sequence_ > sizes.positions) {
      throw ConfigError(
          str("--sequence ", sequence_, " is longer than the model's ", sizes.positions));
    }
    objective_ = models::make_objective(
        preset_.options, models::read_token_table(options.data, tokens_.vocab_size()), sequence_);
    if (objective_->facts().vocabulary > sizes.vocabulary) {
      throw ConfigError(
          str(tokens_.path(),
              " has ",
              tokens_.vocab_size(),
              " tokens, with those that are reserved ",
              objective_->facts().vocabulary,
              ", the model ",
              sizes.vocabulary,
              ": they do not belong together"));
    }
    samples_ = data::count_samples(tokens_.size(), objective_->facts().window, tokens_.path());
    if (options.samples > 0) {
      samples_ = std::min(samples_, static_cast<std::uint64_t>(options.samples));
    }
    {
      const delay_param_initialization delayed;
      const tensor_parallelism marked(config_in_force().tensor_parallel_degree > 1);
      whole_ = models::make_model(preset_);
    }
    StartingPoint start(std::move(weights), whole_);
    model_.emplace(whole_.module);
    start.load_into(*model_);
  }

  Sum run() {
    const torch::NoGradGuard no_grad;
    whole_.module->eval();
    const auto replicas = static_cast<std::uint64_t>(data_size());
    const auto local = static_cast<std::uint64_t>(options_.batch) / replicas;
    Sum own;
    for (std::uint64_t first = 0; first < samples_; first += local * replicas) {
      add(own, batch_from(first + local * static_cast<std::uint64_t>(data_rank()), local));
    }
    Sum sum;
    for (const auto& [loss, tokens] :
         allgather(std::make_tuple(own.loss, own.tokens), Group::kDP)) {
      sum.loss += loss;
      sum.tokens += tokens;
    }
    return sum;
  }

  std::uint64_t samples() const {
    return samples_;
  }
  std::int64_t sequence() const {
    return sequence_;
  }
  const models::ObjectiveFacts& objective() const {
    return objective_->facts();
  }
  /// The file or the folder that was read.
  const std::string& weights() const {
    return weights_;
  }
  const models::Preset& preset() const {
    return preset_;
  }

 private:
  void check_folder() const {
    data::DataHashes found;
    (options_.split == "train" ? found.train : found.validation) =
        hexadecimal(tokens_.content_hash());
    if (const std::string path = data::tokenizer_path(options_.data);
        std::filesystem::exists(path)) {
      found.tokenizer = data::hash_of_tokenizer(path);
    }
    data::check_files_of_manifest(options_.data, found);
  }

  void check_tokenizer(const Weights& weights) const {
    const std::string other =
        tokenizer_difference(weights, data::tokenizer_path(options_.data), options_.data);
    if (!other.empty()) {
      throw ConfigError(
          str(other,
              "; name the folder of their own data, or prepare the text with their tokenizer "
              "(tessera data prepare --tokenizer FILE)"));
    }
  }

  void open_documents() {
    models::check_takes_documents(preset_.options, preset_.family, kResetAttentionMask);
    const bool train = options_.split == "train";
    documents_.indexes.push_back(data::open_index_beside(
        options_.data,
        tokens_,
        train ? data::kTrainDocumentsFile : data::kValidationDocumentsFile,
        kResetAttentionMask));
    documents_.reset_positions = options_.reset_position_ids;
  }

  models::Examples batch_from(std::uint64_t first, std::uint64_t count) const {
    std::vector<std::uint64_t> samples(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      samples[i] = first + i < samples_ ? first + i : 0;
    }
    models::Examples batch = models::evaluation_examples(*objective_, tokens_, samples, documents_);
    for (std::uint64_t i = 0; i < count; ++i) {
      if (first + i >= samples_) {
        batch.targets.at(0)[static_cast<std::int64_t>(i)].fill_(models::kIgnoredTarget);
      }
    }
    return batch;
  }

  void add(Sum& sum, const models::Examples& batch) {
    const auto step = tessera::step([&](models::Tensors inputs, models::Tensors targets) {
      return whole_.training_loss(inputs, targets);
    });
    const std::vector<torch::Tensor> losses = step(batch.inputs, batch.targets).outputs();
    const auto counted = batch.targets.at(0)
                             .ne(models::kIgnoredTarget)
                             .chunk(static_cast<std::int64_t>(losses.size()));
    for (std::size_t i = 0; i < losses.size(); ++i) {
      const auto tokens = counted[i].sum().item<double>();
      if (tokens > 0) { // the mean of no token is not a number
        sum.loss += losses[i].to(torch::kDouble).item<double>() * tokens;
        sum.tokens += tokens;
      }
    }
  }

  const Options& options_;
  std::string weights_;
  models::Preset preset_;
  data::TokenDataset tokens_;
  models::Documents documents_; // without indexes unless the options ask for them
  std::int64_t sequence_ = 0;
  std::uint64_t samples_ = 0;
  std::unique_ptr<models::Objective> objective_;
  models::AnyModel whole_;
  std::optional<Model> model_;
};

void print(const Options& options, const Evaluation& evaluation, const Sum& sum) {
  const double loss = sum.loss / sum.tokens;
  // Ranks that share samples have counted them several times.
  const auto tokens =
      static_cast<std::int64_t>(evaluation.samples()) * evaluation.objective().targets;
  if (options.json) {
    OrderedJson said;
    said["weights"] = evaluation.weights();
    said["data"] = options.data;
    said["split"] = options.split;
    said["samples"] = evaluation.samples();
    said["sequence"] = evaluation.sequence();
    said["objective"] = evaluation.objective().name;
    if (options.reset_attention_mask) {
      said["reset_attention_mask"] = true;
      said["reset_position_ids"] = options.reset_position_ids;
    }
    said["tokens"] = tokens;
    said["loss"] = loss;
    said["perplexity"] = std::exp(loss);
    std::printf("%s\n", indented(said, 2).c_str());
    return;
  }
  std::printf(
      "%s: %s of %s, %s: loss %.6f, perplexity %.4f, over %lld tokens (%llu samples of %lld "
      "tokens)\n",
      evaluation.weights().c_str(),
      options.split.c_str(),
      options.data.c_str(),
      evaluation.objective().name.c_str(),
      loss,
      std::exp(loss),
      static_cast<long long>(tokens),
      static_cast<unsigned long long>(evaluation.samples()),
      static_cast<long long>(evaluation.sequence()));
}

void run(const Options& options) {
  Weights weights(options.weights);
  keep_freed_memory();
  init(parallel_of(options));
  const std::int64_t share =
      static_cast<std::int64_t>(data_size()) * config_in_force().microbatches;
  if (options.batch % share != 0) {
    throw ConfigError(
        str("--batch ", options.batch, " is no multiple of replicas x microbatches = ", share));
  }
  {
    Evaluation evaluation(options, std::move(weights));
    const Sum sum = evaluation.run();
    if (rank() == 0) {
      print(options, evaluation, sum);
    }
  }
  shutdown();
}

void set_up(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option(
         "weights", options->weights, "a checkpoint, a folder of them, or a folder with weights")
      ->required();
  app.add_option("--data", options->data, "a folder that `tessera data prepare` made")
      ->required()
      ->check(CLI::ExistingDirectory);
  app.add_option("--split", options->split, "which tokens of it")
      ->check(CLI::IsMember({"validation", "train"}))
      ->capture_default_str();
  app.add_option(
         "--sequence", options->sequence, "tokens of a sample; the model's longest when not given")
      ->check(positive_number());
  app.add_option("--batch", options->batch, "samples of a step")
      ->check(positive_number())
      ->capture_default_str();
  app.add_option("--samples", options->samples, "only the first so many; all when not given")
      ->check(positive_number());
  app.add_option(
      "--parallel",
      options->parallel,
      "a configuration file for the ranks; a pipeline over all of them when not given");
  auto* mask = app.add_flag(
      kResetAttentionMask,
      options->reset_attention_mask,
      "tokens attend to their own document alone, as with data.reset_attention_mask of a job");
  app.add_flag(
         "--reset-position-ids",
         options->reset_position_ids,
         "positions count from 0 in every document, as with data.reset_position_ids")
      ->needs(mask);
  app.add_flag("--json", options->json, "print JSON");
  app.callback([options] { run(*options); });
}

const RegisterCommand registered({
    "eval",
    "loss and perplexity of weights on data; on several ranks with launch",
    set_up,
});

} // namespace
} // namespace eval_command

} // namespace tessera::cli
