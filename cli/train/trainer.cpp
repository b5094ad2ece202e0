#include "cli/train/trainer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <limits>

#include <torch/torch.h>

#include "tessera/base/json/read.h"
#include "tessera/context/context.h"
#include "tessera/nn/module/activation_checkpointing.h"
#include "tessera/nn/module/containers.h"
#include "tessera/optim/adamw_8bit.h"
#include "tessera/optim/lamb.h"
#include "tessera/optim/novograd.h"

#include "cli/exit_status.h"
#include "cli/train/job_preset.h"
#include "models/data/data_folder.h"
#include "models/data/document_begins.h"
#include "models/objectives/load.h"

namespace tessera::cli {

namespace {

std::atomic<bool> g_stop{false};

/// The first signal lets the step in hand end, a second Ctrl-C ends at once.
extern "C" void on_signal(int signal) {
  if (signal == SIGINT && g_stop) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  g_stop = true;
}

/// The layers of a model are the children of its Sequentials.
void recompute_layers(torch::nn::Module& model, const std::string& strategy) {
  bool any = false;
  for (const auto& module : model.modules()) {
    if (dynamic_cast<nn::SequentialImpl*>(module.get()) != nullptr) {
      set_activation_checkpointing(*module, {.strategy = strategy});
      any = true;
    }
  }
  if (!any) {
    throw ConfigError(
        "'activation_checkpointing' needs a model whose layers are in a Sequential; this one has "
        "none: write \"none\"");
  }
}

/// A checkpoint that cannot be loaded is found by every rank, and would be found again by a job
/// that is started again.
template <typename Load>
void as_config_error(const Load& load) {
  try {
    load();
  } catch (const CheckpointError& error) {
    throw ConfigError(error.what());
  }
}

} // namespace

bool stop_asked() {
  return g_stop;
}

Trainer::Trainer(Job job, TrainArguments arguments)
    : job_(std::move(job)), arguments_(std::move(arguments)), judge_(job_.bad_steps) {
  if (job_.optimizer.rate.decay == "plateau") {
    plateau_.emplace(job_.optimizer.plateau);
  }
  // A polite end: the step in hand is finished and saved.
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  std::signal(SIGUSR1, on_signal);
  build_data();
  prepare_folders(models::count_parameters(preset_.options));
  build_model();
  build_optimizer();
  if (rank() == 0) {
    progress_.emplace(0, job_.steps, job_.log_every);
  }
  if (!resume() && start_) {
    as_config_error([&] { start_->load_into(*distributed_); });
    tell(str("parameters from ", start_->path()));
    if (!start_warning_.empty()) {
      tell("warning: " + start_warning_);
    }
  }
  start_.reset();
  start_log();
  if (progress_) {
    progress_.emplace(first_step_, job_.steps, job_.log_every);
  }
  barrier(); // so that the ranks' clocks begin together
  context().recorder->set_origin();
  context().recorder->enable(true);
}

Trainer::~Trainer() = default;

void Trainer::tell(const std::string& text) {
  if (progress_) {
    progress_->note(text);
  }
}

void Trainer::build_data() {
  folders_ = folders_of(job_);
  // Rank 0's reading of all bytes is enough; others map the same file.
  const bool verify = local_rank() == 0;
  train_data_ = data::open_parts(folders_, data::kTrainFile, verify);
  validation_data_ = data::open_parts(folders_, data::kValidationFile, verify);
  data_hashes_ = data::hashes_of_parts(folders_, train_data_, validation_data_);
  train_documents_ = documents_of(train_data_, data::kTrainDocumentsFile);
  if (job_.validation.every > 0) {
    validation_documents_ = documents_of(validation_data_, data::kValidationDocumentsFile);
  }
  const std::int64_t share = static_cast<std::int64_t>(data_size()) * job_.parallel.microbatches;
  // What replica_samples says was checked with the job.
  if (job_.parallel.replica_samples.empty() && job_.data.batch % share != 0) {
    throw ConfigError(str(
        "'data.batch' is ",
        job_.data.batch,
        "; ",
        data_size(),
        job_.parallel.prescaled_batch ? " replicas, whose tensor-parallel ranks get the same, with "
                                      : " data-parallel ranks with ",
        job_.parallel.microbatches,
        " microbatches need a multiple of ",
        share));
  }
  rows_ = data_rows(job_.data.batch);
  JobModel model;
  as_config_error([&] { model = job_model(job_); });
  preset_ = std::move(model.preset);
  objective_ = std::move(model.objective);
  sampler_.emplace(samples_of(train_data_));
  if (job_.validation.every > 0) {
    samples_of(validation_data_); // an error now where there is not one
  }
}

models::Documents Trainer::documents_of(
    const std::vector<data::TokenDataset>& datasets,
    const char* file) const {
  if (!job_.data.reset_attention_mask) {
    return {};
  }
  return {
      data::open_indexes(folders_, datasets, file, kResetAttentionMaskKey),
      job_.data.reset_position_ids};
}

data::MixtureOptions Trainer::samples_of(const std::vector<data::TokenDataset>& datasets) const {
  data::MixtureOptions options;
  for (std::size_t i = 0; i < datasets.size(); ++i) {
    options.weights.push_back(folders_[i].weight);
    options.samples.push_back(
        data::count_samples(datasets[i].size(), objective_->facts().window, datasets[i].path()));
  }
  options.batch = static_cast<std::uint64_t>(rows_.count);
  options.before = static_cast<std::uint64_t>(rows_.begin);
  options.all = static_cast<std::uint64_t>(job_.data.batch);
  options.seed = static_cast<std::uint64_t>(job_.parallel.seed);
  return options;
}

void Trainer::build_model() {
  torch::manual_seed(static_cast<std::uint64_t>(job_.parallel.seed));
  {
    const delay_param_initialization delayed(job_.parallel.delayed_parameter_initialization);
    const tensor_parallelism marked(job_.parallel.tensor_parallel_degree > 1);
    model_ = models::make_model(preset_);
  }
  if (job_.activation_checkpointing != "none") {
    recompute_layers(*model_->module, job_.activation_checkpointing);
  }
  const std::string& folder = job_.checkpoint.directory;
  const bool resumes = arguments_.resume && !folder.empty() && checkpoint_exists(folder);
  if (!job_.model.init_from.empty() && !resumes) {
    as_config_error([&] {
      Weights weights(job_.model.init_from);
      start_warning_ = check_tokenizer(job_, weights);
      start_.emplace(std::move(weights), *model_);
    });
  }
  ModelOptions options;
  options.backward_passes_per_step = static_cast<int>(job_.accumulation);
  distributed_.emplace(model_->module, options);
}

namespace {

/// Matrices are decayed; norms and biases are not.
template <typename Options>
std::vector<torch::optim::OptimizerParamGroup>
decayed_groups(const std::vector<torch::Tensor>& parameters, const Options& options, double decay) {
  std::vector<torch::Tensor> matrices;
  std::vector<torch::Tensor> vectors;
  for (const auto& parameter : parameters) {
    (parameter.dim() > 1 ? matrices : vectors).push_back(parameter);
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::make_unique<Options>(Options(options).weight_decay(decay)));
  groups.emplace_back(vectors, std::make_unique<Options>(Options(options).weight_decay(0)));
  return groups;
}

} // namespace

void Trainer::build_optimizer() {
  const Job::Optimizer& asked = job_.optimizer;
  const auto parameters = distributed_->parameters();
  const double rate = asked.rate.at(0);
  const auto betas = std::make_tuple(asked.beta1, asked.beta2);
  std::unique_ptr<torch::optim::Optimizer> made;
  if (asked.type == "adamw") {
    const auto options = torch::optim::AdamWOptions(rate).betas(betas).eps(asked.eps);
    made = std::make_unique<torch::optim::AdamW>(
        decayed_groups(parameters, options, asked.weight_decay), options);
  } else if (asked.type == "adamw_8bit") {
    const auto options =
        optim::AdamW8bitOptions(rate).betas(betas).eps(asked.eps).stochastic_rounding(
            asked.stochastic_rounding);
    made = std::make_unique<optim::AdamW8bit>(
        decayed_groups(parameters, options, asked.weight_decay), options);
  } else if (asked.type == "lamb") { // the job clips
    const auto options = optim::LambOptions(rate).betas(betas).eps(asked.eps).max_grad_norm(0);
    made = std::make_unique<optim::Lamb>(
        decayed_groups(parameters, options, asked.weight_decay), options);
  } else if (asked.type == "novograd") {
    const auto options = optim::NovoGradOptions(rate).betas(betas).eps(asked.eps);
    made = std::make_unique<optim::NovoGrad>(
        decayed_groups(parameters, options, asked.weight_decay), options);
  } else if (asked.type == "adam") {
    made = std::make_unique<torch::optim::Adam>(
        parameters,
        torch::optim::AdamOptions(rate).betas(betas).eps(asked.eps).weight_decay(
            asked.weight_decay));
  } else {
    made = std::make_unique<torch::optim::SGD>(
        parameters,
        torch::optim::SGDOptions(rate).momentum(asked.momentum).weight_decay(asked.weight_decay));
  }
  for (const auto& group : made->param_groups()) {
    asked_options_.push_back(group.options().clone());
  }
  LossScaleOptions loss_scale;
  if (job_.precision == "fp16") {
    loss_scale = {.dynamic_loss_scale = true, .dynamic_loss_args = job_.loss_scale};
  }
  optimizer_.emplace(std::move(made), loss_scale);
}

bool Trainer::resume() {
  const std::string& folder = job_.checkpoint.directory;
  if (folder.empty()) {
    if (arguments_.resume) {
      throw ConfigError("--resume needs 'checkpoint.directory' in the job file");
    }
    return false;
  }
  if (!arguments_.resume) {
    // Starting over beside old checkpoints would mix two runs.
    if (checkpoint_exists(folder)) {
      throw ConfigError(
          str("'",
              folder,
              "' holds checkpoints already; pass --resume to go on from the "
              "newest, or name another checkpoint.directory"));
    }
    return false;
  }
  std::optional<Loaded> loaded;
  as_config_error([&] { loaded = load(*distributed_, *optimizer_, folder); });
  if (!loaded) {
    tell(str("no checkpoint in '", folder, "' yet: starting at step 0"));
    return false;
  }
  for (const std::string& warning : loaded->warnings) {
    tell("warning: " + warning);
  }
  const auto content = OrderedJson::parse(loaded->user_content);
  form::Faults faults(loaded->path);
  form::Reader read(content, faults);
  check_data(content);
  warn_of_other_settings(content);
  read({.name = "step", .bounds = form::at_least(0)}, first_step_);
  steps_done_ = first_step_;
  if (content.contains("bad_steps")) {
    judge_.set_state(content["bad_steps"].dump(), loaded->path);
  }
  if (plateau_ && content.contains("plateau")) {
    plateau_->set_state(content["plateau"].dump(), loaded->path);
  } else if (plateau_) {
    tell(
        "warning: the checkpoint is of a run with another optimizer.decay; the plateau begins "
        "here");
  }
  OrderedJson sampler;
  read({.name = "sampler"}, sampler);
  as_config_error([&] { sampler_->set_state(sampler.dump()); });
  tell(str("resumed from ", loaded->path, ", step ", first_step_, ", state ", loaded->state_hash));
  if (first_step_ >= job_.steps) {
    tell(str("nothing is left to do: the run ends at step ", job_.steps));
  }
  return true;
}

void Trainer::check_data(const OrderedJson& content) {
  if (!content.contains("data")) {
    tell("warning: the checkpoint does not say which data it was made with");
    return;
  }
  const std::string text =
      data::mixture_differences(content.at("data").dump(), folders_, data_hashes_);
  if (text.empty()) {
    return;
  }
  if (!arguments_.accept_other_data) {
    throw ConfigError(
        str("the checkpoint was made with other data than 'data.",
            folders_.size() > 1 ? "mixture" : "directory",
            "' ",
            data::to_text(folders_),
            " holds:\n",
            text,
            "\nName the folder it was made with, or pass --accept-other-data"));
  }
  tell("warning: going on with other data than the checkpoint was made with:\n" + text);
}

double Trainer::train_step(std::int64_t number) {
  model_->module->train();
  optimizer_->zero_grad(/*set_to_none=*/true);
  context().recorder->take(); // what ran between the steps
  double loss = 0;
  const double share = 1.0 / static_cast<double>(job_.accumulation);
  const auto step = tessera::step([&](models::Tensors inputs, models::Tensors targets) {
    distributed_->check_call();
    const auto value = model_->training_loss(inputs, targets) * share;
    distributed_->backward(value);
    return value;
  });
  for (std::int64_t i = 0; i < job_.accumulation; ++i) {
    const auto batch = models::training_examples(
        *objective_,
        train_data_,
        *sampler_,
        static_cast<std::uint64_t>(job_.parallel.seed),
        train_documents_);
    loss += step(batch.inputs, batch.targets).reduce_mean().to(torch::kDouble).item<double>();
    keep_events(number + 1, i);
  }
  // The norm is needed without clipping too: it tells whether all is finite. Sharded gradients are
  // clipped by the optimizer's step.
  const bool clips =
      job_.optimizer.clip_norm > 0 && job_.parallel.sharded_data_parallel_degree == 1;
  grad_norm_ = optimizer_->clip_grad_norm(
      clips ? job_.optimizer.clip_norm : std::numeric_limits<double>::infinity());
  if (!judge_update(number, loss)) {
    return loss;
  }
  // Here, not before: a checkpoint that is loaded with the first step's partition brings the
  // options and the rate of its own time.
  for (std::size_t i = 0; i < asked_options_.size(); ++i) {
    optimizer_->inner().param_groups().at(i).set_options(std::move(asked_options_[i]));
  }
  asked_options_.clear();
  optim::set_learning_rate(optimizer_->inner(), learning_rate(number));
  optimizer_->step();
  return loss;
}

double Trainer::validate() {
  const torch::NoGradGuard no_grad;
  model_->module->eval();
  // The same samples every time.
  data::MixtureOptions options = samples_of(validation_data_);
  options.shuffle = false;
  data::MixtureSampler sampler(options);
  const auto step = tessera::step([&](models::Tensors inputs, models::Tensors targets) {
    return model_->training_loss(inputs, targets);
  });
  double total = 0;
  for (std::int64_t i = 0; i < job_.validation.batches; ++i) {
    const auto batch = models::evaluation_examples(
        *objective_, validation_data_, sampler.next(), validation_documents_);
    total += step(batch.inputs, batch.targets).reduce_mean().to(torch::kDouble).item<double>();
  }
  double mean = 0;
  for (const double value : allgather(
           data_weight() * total / static_cast<double>(job_.validation.batches), Group::kDP)) {
    mean += value / dp_size();
  }
  return mean;
}

double Trainer::learning_rate(std::int64_t step) const {
  return job_.optimizer.rate.at(step, plateau_ ? plateau_->factor() : 1);
}

void Trainer::follow_plateau(std::int64_t steps_done) {
  if (!plateau_) {
    return;
  }
  // Every rank takes the number of rank 0, so that none lowers its rate alone.
  if (plateau_->observe(allgather(validation_loss_).front())) {
    tell(
        str("validation loss has not fallen for ",
            job_.optimizer.plateau.patience,
            " evaluations: learning rate ",
            learning_rate(steps_done)));
  }
}

int Trainer::run() {
  using Clock = std::chrono::steady_clock;
  bool stopped = false;
  std::int64_t saved_at = first_step_;
  std::string not_saved;
  std::int64_t done = first_step_;
  while (done < job_.steps && !stopped) {
    const auto start = Clock::now();
    const double loss = train_step(done);
    const std::chrono::duration<double> seconds = Clock::now() - start;
    const Totals totals = add_up(done + 1, loss);
    stopped = totals.stop;
    if (totals.written) {
      tell_not_saved(finish_save());
    }

    report::StepRecord record;
    record.step = done + 1;
    record.loss = totals.loss;
    record.step_seconds = seconds.count();
    record.tokens_per_second =
        static_cast<double>(job_.data.batch * job_.data.sequence * job_.accumulation) /
        seconds.count();
    record.learning_rate = learning_rate(done);
    record.grad_norm = grad_norm_;
    record.skipped = skipped_;
    if (job_.precision == "fp16") {
      record.loss_scale = loss_scale_;
    }
    record.bubble_share = totals.bubble_share;
    record.elapsed_seconds = elapsed();
    record.memory_bytes = totals.memory;
    record.peak_bytes = totals.peaks;
    record.offload_bytes = totals.offloaded;
    if (progress_) {
      progress_->step(record);
    }
    if (log_) {
      log_->write(record);
    }
    if (done == first_step_) {
      log_partition();
    }
    steps_done_ = ++done;
    if (job_.validation.every > 0 && (done % job_.validation.every == 0 || done == job_.steps)) {
      validation_loss_ = validate();
      validated_at_ = done;
      tell(str("validation after step ", done, ": loss ", validation_loss_));
      if (log_) {
        log_->write(report::ValidationRecord{done, validation_loss_});
      }
      // The one at the end of a run that was cut short is not among those of the whole run.
      if (done % job_.validation.every == 0) {
        follow_plateau(done);
      }
    }
    if (job_.checkpoint.every > 0 && done % job_.checkpoint.every == 0) {
      tell_not_saved(finish_save()); // one at a time
      not_saved = save(done);
      saved_at = done;
      if (done < job_.steps && !stopped) {
        tell_not_saved(not_saved);
      }
    }
  }
  if (!job_.checkpoint.directory.empty() && saved_at != done) {
    tell_not_saved(finish_save());
    not_saved = save(done);
  }
  if (saving_) {
    not_saved = finish_save();
  }
  stopped = stopped && done < job_.steps; // a signal in the last step stops nothing
  if (!stopped && !job_.sample.prompt.empty()) {
    sample(done);
  }
  log_traffic(done);
  write_timeline();
  return end(stopped, done, not_saved);
}

int Trainer::end(bool stopped, std::int64_t done, const std::string& not_saved) {
  if (judge_.skipped() > 0) {
    tell(str("updates left out since the job began: ", judge_.skipped()));
  }
  if (overflows_ > 0) {
    tell(str("updates left out since this start because gradients overflowed: ", overflows_));
  }
  const bool saves = !job_.checkpoint.directory.empty();
  if (stopped && saves && not_saved.empty()) {
    tell(str("stopped by a signal after step ", done, "; go on with --resume"));
  } else if (stopped && !saves) {
    tell(
        str("stopped by a signal after step ",
            done,
            "; nothing is saved, as the job has no checkpoint.directory"));
  }
  if (!not_saved.empty()) {
    log_end("failed", str("the last state was not saved: ", not_saved));
  } else if (stopped) {
    log_end("stopped", "by a signal");
  } else if (done < job_.optimizer.rate.total) {
    log_end("stopped", str("by --steps ", done, " of the job's ", job_.optimizer.rate.total));
  } else {
    log_end("finished", "");
  }
  if (progress_) {
    progress_->finish();
  }
  if (!not_saved.empty()) {
    if (rank() == 0) {
      std::fprintf(
          stderr,
          "tessera: the run failed: its last state, after step %lld, was not saved: %s\n",
          static_cast<long long>(done),
          not_saved.c_str());
    }
    return 1;
  }
  return !stopped ? 0 : saves ? kResumableStatus : 1;
}

} // namespace tessera::cli
