#include "cli/train/job.h"

#include <fstream>
#include <numeric>
#include <sstream>
#include <vector>

#include "tessera/base/json/read.h"
#include "tessera/base/text.h"
#include "tessera/config/keys.h"
#include "tessera/planner/planned_config.h"
#include "tessera/recompute/strategy.h"

#include "cli/train/job_text.h"

namespace tessera::cli {

/// The options of a model, which its family reads (models/options.h).
struct OptionsText {
  std::string& json;
};

} // namespace tessera::cli

namespace tessera::form {

template <>
struct Custom<cli::OptionsText> {
  static bool read(const OrderedJson& found, cli::OptionsText& into) {
    if (found.is_object()) {
      into.json = one_line(found);
    }
    return found.is_object();
  }
  static OrderedJson write(const cli::OptionsText& options) {
    return OrderedJson::parse(options.json);
  }
  static std::string allowed() {
    return "an object of the model's options";
  }
};

} // namespace tessera::form

namespace tessera::cli {

namespace {

constexpr double kLargest = 1e30;
constexpr form::Bounds kCount = form::at_least(0);
constexpr form::Bounds kAtLeastOne = form::at_least(1);
constexpr form::Bounds kNotNegative = form::between(0, kLargest);
constexpr form::Bounds kAboveZero = {.min = 0, .max = kLargest, .above_min = true};
constexpr form::Bounds kBelowOne = form::from_to_below(0, 1);

/// What a file of nothing but "data.directory" leaves out.
form::Field key(const char* name, const form::Bounds& bounds = {}) {
  return {.name = name, .bounds = bounds, .presence = form::Presence::kOptional};
}

form::Field choice(const char* name, std::vector<std::string> choices) {
  form::Field field = key(name);
  field.choices = std::move(choices);
  return field;
}

} // namespace

template <typename Visit>
void describe(Visit& visit, Job::Model& model) {
  visit(key("name"), model.name);
  OptionsText options{model.options};
  visit(key("options"), options);
  visit(key("init_from"), model.init_from);
  visit(key("other_tokenizer"), model.other_tokenizer);
}

} // namespace tessera::cli

namespace tessera::data {

template <typename Visit>
void describe(Visit& visit, MixturePart& part) {
  using cli::key;
  visit({.name = "directory"}, part.directory);
  visit(key("weight", cli::kAboveZero), part.weight);
}

} // namespace tessera::data

namespace tessera::cli {

template <typename Visit>
void describe(Visit& visit, Job::Data& data) {
  visit(key("directory"), data.directory);
  visit(key("mixture"), data.mixture);
  visit(key("sequence", kAtLeastOne), data.sequence);
  visit(key("batch", kAtLeastOne), data.batch);
  visit(key("reset_attention_mask"), data.reset_attention_mask);
  visit(key("reset_position_ids"), data.reset_position_ids);
}

template <typename Visit>
void describe(Visit& visit, Job::Optimizer& optimizer) {
  optim::LearningRate& rate = optimizer.rate;
  visit(choice("type", {"adamw", "adamw_8bit", "adam", "lamb", "novograd", "sgd"}), optimizer.type);
  visit(key("learning_rate", kAboveZero), rate.peak);
  visit(key("min_learning_rate", kNotNegative), rate.minimum);
  visit(key("warmup_steps", kCount), rate.warmup);
  visit(choice("decay", {"constant", "linear", "cosine", "exponential", "plateau"}), rate.decay);
  visit(key("plateau_factor", kBelowOne), optimizer.plateau.factor);
  visit(key("plateau_patience", kAtLeastOne), optimizer.plateau.patience);
  visit(key("plateau_threshold", kBelowOne), optimizer.plateau.threshold);
  visit(key("weight_decay", kNotNegative), optimizer.weight_decay);
  visit(key("beta1", kBelowOne), optimizer.beta1);
  visit(key("beta2", kBelowOne), optimizer.beta2);
  visit(key("eps", kAboveZero), optimizer.eps);
  visit(key("momentum", kBelowOne), optimizer.momentum);
  visit(key("clip_norm", kNotNegative), optimizer.clip_norm);
  visit(key("stochastic_rounding"), optimizer.stochastic_rounding);
}

template <typename Visit>
void describe(Visit& visit, Job::Checkpoint& checkpoint) {
  visit(key("directory"), checkpoint.directory);
  visit(key("every", kCount), checkpoint.every);
  visit(key("keep", kCount), checkpoint.keep);
  visit(key("keep_every", kCount), checkpoint.keep_every);
  visit(key("keep_best"), checkpoint.keep_best);
  visit(key("full"), checkpoint.full);
  visit(key("background"), checkpoint.background);
}

template <typename Visit>
void describe(Visit& visit, BadStepPolicy& policy) {
  visit(choice("not_finite", {"stop", "skip"}), policy.not_finite);
  visit(key("spike", kNotNegative), policy.spike);
  visit(key("most_skipped", kCount), policy.most_skipped);
}

} // namespace tessera::cli

namespace tessera::optim {

template <typename Visit>
void describe(Visit& visit, DynamicLossArgs& scale) {
  using cli::key;
  visit(key("init_scale", cli::kAboveZero), scale.init_scale);
  visit(key("scale_factor", cli::kAboveZero), scale.scale_factor);
  visit(key("scale_window", cli::kAtLeastOne), scale.scale_window);
  visit(key("min_scale", cli::kAboveZero), scale.min_scale);
  visit(key("delayed_shift", cli::kAtLeastOne), scale.delayed_shift);
  visit(key("consecutive_hysteresis"), scale.consecutive_hysteresis);
}

} // namespace tessera::optim

namespace tessera::cli {

template <typename Visit>
void describe(Visit& visit, Job::Validation& validation) {
  visit(key("every", kCount), validation.every);
  visit(key("batches", kAtLeastOne), validation.batches);
}

template <typename Visit>
void describe(Visit& visit, Job::Sample& sample) {
  visit(key("prompt"), sample.prompt);
  visit(key("tokens", kAtLeastOne), sample.tokens);
  visit(key("temperature", kNotNegative), sample.temperature);
  visit(key("top_k", kCount), sample.top_k);
}

template <typename Visit>
void describe(Visit& visit, Job& job, OrderedJson* parallel = nullptr) {
  OrderedJson unread;
  visit(key("parallel"), parallel != nullptr ? *parallel : unread);
  visit(key("model"), job.model);
  visit(key("data"), job.data);
  visit(key("optimizer"), job.optimizer);
  visit(key("checkpoint"), job.checkpoint);
  visit(key("bad_steps"), job.bad_steps);
  visit(key("loss_scale"), job.loss_scale);
  visit(key("validation"), job.validation);
  visit(key("sample"), job.sample);
  visit(choice("strategy", {"given", "auto"}), job.strategy);
  visit(key("memory_limit_gib", kNotNegative), job.memory_limit_gib);
  visit(key("steps", kAtLeastOne), job.steps);
  visit(key("accumulation", kAtLeastOne), job.accumulation);
  visit(choice("precision", {"f32", "bf16", "fp16"}), job.precision);
  visit(key("activation_checkpointing"), job.activation_checkpointing);
  visit(key("log_every", kAtLeastOne), job.log_every);
}

namespace {

void check_precision(const Job& job, form::Faults& faults) {
  const config::Config& parallel = job.parallel;
  for (const auto& [key, on, precision] :
       {std::make_tuple("fp16", parallel.fp16, "fp16"),
        std::make_tuple("fp16_params", parallel.fp16_params, "fp16"),
        std::make_tuple("bf16", parallel.bf16, "bf16")}) {
    if (on && job.precision != precision) {
      faults.add(
          str("'parallel.",
              key,
              "' is true and 'precision' \"",
              job.precision,
              "\"; write \"precision\": \"",
              precision,
              "\" and leave the key out"));
    }
  }
  const Job::Optimizer& optimizer = job.optimizer;
  if (optimizer.stochastic_rounding &&
      (optimizer.type != "adamw_8bit" || job.precision != "bf16")) {
    faults.add(
        str("'optimizer.stochastic_rounding' is true, 'optimizer.type' \"",
            optimizer.type,
            "\" and 'precision' \"",
            job.precision,
            "\"; write \"adamw_8bit\" and \"bf16\", or leave stochastic_rounding out"));
  }
  if (job.precision != "fp16") {
    if (job.loss_scale != Job{}.loss_scale) {
      faults.add("'loss_scale' has no effect without \"precision\": \"fp16\"; leave it out");
    }
    return;
  }
  try {
    const optim::LossScaler checked(job.loss_scale);
  } catch (const ConfigError& caught) {
    faults.add(str("'loss_scale': ", caught.what()));
  }
}

void check_folders(const Job::Data& data, form::Faults& faults) {
  if (data.directory.empty() == data.mixture.empty()) {
    faults.add(
        data.directory.empty()
            ? "'data.directory' is missing; name the folder that `tessera data "
              "prepare` wrote, or several in 'data.mixture'"
            : "'data.directory' and 'data.mixture' both say folders; leave one of them out");
  }
  for (std::size_t i = 0; i < data.mixture.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (data.mixture[i].directory == data.mixture[j].directory) {
        faults.add(
            str("'data.mixture' has the folder '",
                data.mixture[i].directory,
                "' twice; write it once with the sum of the weights"));
      }
    }
  }
}

void check_documents(const Job& job, form::Faults& faults) {
  if (job.data.reset_position_ids && !job.data.reset_attention_mask) {
    faults.add(
        "'data.reset_position_ids' is true without 'data.reset_attention_mask': tokens of several "
        "documents would see each other at the same places; write both, or leave it out");
  }
  if (job.data.reset_attention_mask && job.parallel.mesh_memory == config::MeshMemory::kManaged) {
    faults.add(
        "'data.reset_attention_mask' is a mask, and layers with 'parallel.mesh_memory' "
        "\"managed\" take none; leave one of them out");
  }
}

void check_plateau(const Job& job, form::Faults& faults) {
  const optim::PlateauOptions& plateau = job.optimizer.plateau;
  if (job.optimizer.rate.decay != "plateau") {
    const optim::PlateauOptions unset;
    for (const auto& [key, said] :
         {std::make_pair("plateau_factor", plateau.factor != unset.factor),
          std::make_pair("plateau_patience", plateau.patience != unset.patience),
          std::make_pair("plateau_threshold", plateau.threshold != unset.threshold)}) {
      if (said) {
        faults.add(str(
            "'optimizer.", key, "' has no effect without \"decay\": \"plateau\"; leave it out"));
      }
    }
    return;
  }
  if (job.validation.every == 0) {
    faults.add(
        "'optimizer.decay' is \"plateau\", which follows the validation loss, and "
        "'validation.every' is 0; write after how many steps to validate");
  }
  try {
    const optim::Plateau checked(plateau);
  } catch (const ConfigError& caught) {
    faults.add(str("'optimizer': ", caught.what()));
  }
}

// Each optimizer has its own options; another one's is a job that means something else.
void check_optimizer_options(const Job::Optimizer& optimizer, form::Faults& faults) {
  const Job::Optimizer unset;
  const bool is_sgd = optimizer.type == "sgd";
  for (const auto& [key, said, of_sgd] :
       {std::make_tuple("beta1", optimizer.beta1 != unset.beta1, false),
        std::make_tuple("beta2", optimizer.beta2 != unset.beta2, false),
        std::make_tuple("eps", optimizer.eps != unset.eps, false),
        std::make_tuple("momentum", optimizer.momentum != unset.momentum, true)}) {
    if (said && of_sgd != is_sgd) {
      faults.add(
          str("'optimizer.",
              key,
              "' has no effect with \"type\": \"",
              optimizer.type,
              "\"; leave it out"));
    }
  }
}

void check_couplings(const Job& job, bool has_warmup, form::Faults& faults) {
  const std::string& strategy = job.activation_checkpointing;
  if (strategy != "none" && !recompute::children_of_strategy(strategy)) {
    faults.add(
        str("'activation_checkpointing' is '",
            strategy,
            "'; write \"none\", ",
            recompute::kStrategies));
  }
  if (strategy != "none" && job.parallel.mesh_memory == config::MeshMemory::kManaged) {
    faults.add(
        "'activation_checkpointing' and 'parallel.mesh_memory' \"managed\" both recompute the "
        "layers; leave one of them out");
  }
  if (job.model.other_tokenizer && job.model.init_from.empty()) {
    faults.add("'model.other_tokenizer' has no effect without 'model.init_from'; leave it out");
  }
  check_precision(job, faults);
  const double clip_norm = job.optimizer.clip_norm;
  if (job.parallel.sharded_data_parallel_degree > 1 && clip_norm != Job::Optimizer().clip_norm &&
      clip_norm != job.parallel.sdp_gradient_clipping) {
    faults.add(str(
        "'optimizer.clip_norm' is ",
        clip_norm,
        ", but with 'parallel.sharded_data_parallel_degree' greater than 1 gradients are clipped "
        "to 'parallel.sdp_gradient_clipping', ",
        job.parallel.sdp_gradient_clipping,
        "; leave clip_norm out"));
  }
  check_plateau(job, faults);
  check_optimizer_options(job.optimizer, faults);
  check_folders(job.data, faults);
  check_documents(job, faults);
  if (job.memory_limit_gib > 0 && job.strategy != "auto") {
    faults.add(
        "'memory_limit_gib' is what \"strategy\": \"auto\" plans with, and has no effect "
        "without it; leave it out");
  }
  if (job.strategy == "auto") {
    for (const std::string& key : planner::planned_keys_said(job.parallel)) {
      faults.add(
          str("'parallel.",
              key,
              "' is what \"strategy\": \"auto\" decides; leave one of them "
              "out"));
    }
  }
  if (job.parallel.partition_mode == config::PartitionMode::kOperations) {
    faults.add(
        "'parallel.partition_mode' is \"operations\", which is for models of a script's own; the "
        "families of a job divide better by modules: leave it out");
  }
  const std::int64_t microbatches = job.parallel.microbatches;
  const std::vector<int>& samples = job.parallel.replica_samples;
  const std::int64_t all = std::accumulate(samples.begin(), samples.end(), std::int64_t{0});
  if (!samples.empty() && all != job.data.batch) {
    faults.add(
        str("'parallel.replica_samples' adds up to ",
            all,
            " samples, 'data.batch' is ",
            job.data.batch,
            "; write numbers that add up to it"));
  }
  if (job.data.batch % microbatches != 0) {
    faults.add(
        str("'data.batch' is ",
            job.data.batch,
            ", which parallel.microbatches = ",
            microbatches,
            " does not divide; write a multiple"));
  }
  try {
    job.optimizer.rate.validate();
  } catch (const ConfigError& caught) {
    faults.add(
        str("'optimizer': ",
            caught.what(),
            has_warmup ? "" : " (warmup_steps not said: a tenth of steps)"));
  }
  try {
    const BadStepJudge checked(job.bad_steps);
  } catch (const ConfigError& caught) {
    faults.add(caught.what());
  }
  const std::int64_t validates = job.validation.every;
  if (job.checkpoint.keep_best && (validates == 0 || job.checkpoint.every % validates != 0)) {
    faults.add(
        str("'checkpoint.keep_best' needs a validation before every save; 'validation.every' is ",
            validates,
            " and 'checkpoint.every' ",
            job.checkpoint.every,
            ": write a validation.every that divides it"));
  }
  if (job.checkpoint.every > 0 && job.checkpoint.directory.empty()) {
    faults.add("'checkpoint.every' needs 'checkpoint.directory'; write where to save");
  }
}

void read_parallel(const OrderedJson& said, Job& job, form::Faults& faults) {
  try {
    job.parallel = config::parse_config(one_line(with_precision(said, job.precision)), "parallel");
  } catch (const ConfigError& error) {
    faults.add(error.what());
  }
}

// The other two files that `tessera plan` writes: --plan-file and --library-config.
void refuse_other_files(const OrderedJson& root, const std::string& origin) {
  if (root.contains("data") || root.contains("parallel") || root.empty()) {
    return;
  }
  if (root.contains("version") && root.contains("degrees") && root.contains("partition")) {
    throw ConfigError(
        str(origin, ": this is a plan file, not a job; tessera plan -o FILE writes a job"));
  }
  bool keys = true;
  for (const auto& item : root.items()) {
    keys = keys && config::find_key(item.key()) != nullptr;
  }
  if (keys) {
    throw ConfigError(
        str(origin,
            ": this is a configuration of the library, not a job; write it as \"parallel\" of a "
            "job, beside \"model\", \"data\" and \"steps\""));
  }
}

} // namespace

Job parse_job(
    const std::string& text_of_file,
    const std::string& origin,
    const std::vector<std::string>& settings) {
  const JobText text = read_job_text(text_of_file, origin, settings);
  refuse_other_files(text.root, origin);
  form::Faults faults(origin, form::Wording::kMust, form::Faults::Mode::kGather);
  for (const std::string& error : text.errors) {
    faults.add(error);
  }
  constexpr std::int64_t kNotSaid = -1;
  Job job;
  job.said = one_line(text.root);
  job.model.named = text.root.is_object() && text.root.contains("model") &&
                    text.root["model"].is_object() && text.root["model"].contains("name");
  job.optimizer.rate.warmup = kNotSaid;
  OrderedJson parallel = OrderedJson::object();
  form::read(text.root, job, faults, &parallel);
  read_parallel(parallel, job, faults);
  auto& rate = job.optimizer.rate;
  rate.total = job.steps;
  const bool has_warmup = rate.warmup != kNotSaid;
  if (!has_warmup) {
    rate.warmup = job.steps / 10;
  }
  check_couplings(job, has_warmup, faults);
  job.parallel.fp16 = job.precision == "fp16";
  job.parallel.bf16 = job.precision == "bf16";
  if (!faults.messages().empty()) {
    throw ConfigError(str(origin, ": ", join(faults.messages(), "\n")));
  }
  return job;
}

Job load_job(const std::string& path, const std::vector<std::string>& settings) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) {
    throw ConfigError(str("job file '", path, "' cannot be read"));
  }
  return parse_job(text.str(), path, settings);
}

std::vector<data::MixturePart> folders_of(const Job& job) {
  return job.data.mixture.empty() ? std::vector<data::MixturePart>{{job.data.directory, 1}}
                                  : job.data.mixture;
}

std::string effective_job(const Job& job) {
  OrderedJson all = OrderedJson::parse(job.said);
  all["parallel"] = OrderedJson::parse(config::to_json(job.parallel));
  all["strategy"] = job.strategy;
  return all.dump();
}

} // namespace tessera::cli
