#include "cli/train/trainer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>

#include <torch/torch.h>

#include "tessera/base/json_fields.h"
#include "tessera/timeline/intervals.h"

#include "cli/job_preset.h"
#include "cli/train/model_config.h"
#include "models/data/prepare.h"
#include "models/gpt.h"

namespace tessera::cli {

namespace {

constexpr int kKeptSteps = 3; // in the timeline file

std::atomic<bool> g_stop{false};

extern "C" void on_signal(int) {
  g_stop = true;
}

} // namespace

Trainer::Trainer(Job job, TrainArguments arguments)
    : job_(std::move(job)), arguments_(std::move(arguments)) {
  // A polite end: the step in hand is finished and saved.
  std::signal(SIGTERM, on_signal);
  std::signal(SIGUSR1, on_signal);
  build_data();
  build_model();
  build_optimizer();
  if (rank() == 0) {
    progress_.emplace(0, job_.steps, job_.log_every);
  }
  resume();
  start_log();
  if (progress_) {
    progress_.emplace(first_step_, job_.steps, job_.log_every);
  }
  train::session().recorder->enable(true);
}

Trainer::~Trainer() = default;

void Trainer::tell(const std::string& text) {
  if (progress_) {
    progress_->note(text);
  }
}

void Trainer::build_data() {
  const std::string& folder = job_.data.directory;
  // Rank 0's reading of all bytes is enough; others map the same file.
  const bool verify = local_rank() == 0;
  train_data_.emplace(folder + "/" + data::kTrainFile, verify);
  validation_data_.emplace(folder + "/" + data::kValidationFile, verify);
  const std::int64_t share = static_cast<std::int64_t>(data_size()) * job_.parallel.microbatches;
  if (job_.data.batch % share != 0) {
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
  local_batch_ = job_.data.batch / data_size();
  data::SamplerOptions options;
  options.samples =
      data::count_samples(train_data_->size(), job_.data.sequence, train_data_->path());
  options.batch = static_cast<std::uint64_t>(local_batch_);
  options.dp_rank = data_rank();
  options.dp_size = data_size();
  options.seed = static_cast<std::uint64_t>(job_.parallel.seed);
  sampler_.emplace(options);
}

void Trainer::build_model() {
  const models::Preset preset = preset_of(job_);
  torch::manual_seed(static_cast<std::uint64_t>(job_.parallel.seed));
  {
    const tracer::DelayedInitScope delayed(job_.parallel.delayed_parameter_initialization);
    const tensor_parallelism marked(job_.parallel.tensor_parallel_degree > 1);
    model_ = models::make_model(preset);
    if (job_.precision == "bf16") {
      model_->module->to(torch::kBFloat16);
    }
  }
  ModelOptions options;
  options.backward_passes_per_step = static_cast<int>(job_.accumulation);
  core_ = std::make_shared<train::ModelCore>(model_->module, options);
  train::session().model = core_;
}

void Trainer::build_optimizer() {
  const Job::Optimizer& asked = job_.optimizer;
  const auto parameters = core_->all_parameters();
  const double rate = asked.rate.at(0);
  const auto betas = std::make_tuple(asked.beta1, asked.beta2);
  std::unique_ptr<torch::optim::Optimizer> made;
  if (asked.type == "adamw") {
    // Norms and biases are not decayed.
    std::vector<torch::Tensor> matrices;
    std::vector<torch::Tensor> vectors;
    for (const auto& parameter : parameters) {
      (parameter.dim() > 1 ? matrices : vectors).push_back(parameter);
    }
    const auto options = [&](double decay) {
      return std::make_unique<torch::optim::AdamWOptions>(
          torch::optim::AdamWOptions(rate).betas(betas).weight_decay(decay));
    };
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(matrices, options(asked.weight_decay));
    groups.emplace_back(vectors, options(0));
    made =
        std::make_unique<torch::optim::AdamW>(std::move(groups), torch::optim::AdamWOptions(rate));
  } else if (asked.type == "adam") {
    made = std::make_unique<torch::optim::Adam>(
        parameters, torch::optim::AdamOptions(rate).betas(betas).weight_decay(asked.weight_decay));
  } else {
    made = std::make_unique<torch::optim::SGD>(
        parameters,
        torch::optim::SGDOptions(rate).momentum(asked.momentum).weight_decay(asked.weight_decay));
  }
  optimizer_.emplace(std::move(made));
}

void Trainer::resume() {
  const std::string& folder = job_.checkpoint.directory;
  if (folder.empty()) {
    if (arguments_.resume) {
      throw ConfigError("--resume needs 'checkpoint.directory' in the job file");
    }
    return;
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
    return;
  }
  const auto loaded = train::load(core_, &*optimizer_, folder, {});
  if (!loaded) {
    tell(str("no checkpoint in '", folder, "' yet: starting at step 0"));
    return;
  }
  for (const std::string& warning : loaded->warnings) {
    tell("warning: " + warning);
  }
  const auto content = OrderedJson::parse(loaded->user_content);
  const JsonFields fields(content, loaded->path);
  first_step_ = fields.integer("step");
  sampler_->set_state(data::sampler_state_from_json(fields.at("sampler").dump()));
  tell(str("resumed from ", loaded->path, ", step ", first_step_, ", state ", loaded->state_hash));
}

double Trainer::train_step(std::int64_t number) {
  model_->module->train();
  optimizer_->zero_grad();
  double loss = 0;
  const double share = 1.0 / static_cast<double>(job_.accumulation);
  const auto step = tessera::step([&](torch::Tensor ids, torch::Tensor targets) {
    core_->check_call();
    const auto value = model_->loss(model_->forward({ids}), {targets}) * share;
    core_->backward({value}, {});
    return value;
  });
  for (std::int64_t i = 0; i < job_.accumulation; ++i) {
    const auto batch = data::load_batch(*train_data_, sampler_->next(), job_.data.sequence);
    loss += step(batch.ids, batch.targets).reduce_mean().to(torch::kDouble).item<double>();
  }
  if (job_.optimizer.clip_norm > 0) {
    grad_norm_ = optimizer_->clip_grad_norm(job_.optimizer.clip_norm);
  }
  // Here, not before: a checkpoint that is loaded with the first step's
  // partition brings the rate of its own time.
  optim::set_learning_rate(optimizer_->inner(), job_.optimizer.rate.at(number));
  optimizer_->step();
  return loss;
}

double Trainer::validate() {
  const torch::NoGradGuard no_grad;
  model_->module->eval();
  data::SamplerOptions options;
  options.samples =
      data::count_samples(validation_data_->size(), job_.data.sequence, validation_data_->path());
  options.batch = static_cast<std::uint64_t>(local_batch_);
  options.dp_rank = data_rank();
  options.dp_size = data_size();
  options.shuffle = false;
  data::Sampler sampler(options);
  const auto step = tessera::step([&](torch::Tensor ids, torch::Tensor targets) {
    return model_->loss(model_->forward({ids}), {targets});
  });
  double total = 0;
  for (std::int64_t i = 0; i < job_.validation.batches; ++i) {
    const auto batch = data::load_batch(*validation_data_, sampler.next(), job_.data.sequence);
    total += step(batch.ids, batch.targets).reduce_mean().to(torch::kDouble).item<double>();
  }
  double mean = 0;
  for (const double value :
       allgather(total / static_cast<double>(job_.validation.batches), Group::kDP)) {
    mean += value / dp_size();
  }
  return mean;
}

Trainer::Totals Trainer::add_up(double loss, double span_us) {
  std::vector<timeline::Interval> busy;
  auto events = train::session().recorder->take();
  for (const auto& event : events) {
    if (event.category == "forward" || event.category == "backward") {
      busy.push_back({event.start_us, event.end_us});
    }
  }
  double busy_us = 0;
  for (const auto& interval : timeline::united(std::move(busy))) {
    busy_us += interval.end - interval.start;
  }
  kept_events_.insert(
      kept_events_.end(),
      std::make_move_iterator(events.begin()),
      std::make_move_iterator(events.end()));
  if (!kept_events_.empty()) {
    const int newest = kept_events_.back().step;
    std::erase_if(kept_events_, [&](const timeline::Event& event) {
      return event.step <= newest - kKeptSteps * job_.accumulation;
    });
  }
  // All ranks' figures in one small message: loss, idle share, memory, stop.
  torch::Tensor mine = torch::tensor(
      {loss,
       std::max(0.0, 1 - busy_us / span_us),
       static_cast<double>(resident_bytes()),
       g_stop ? 1.0 : 0.0},
      torch::kDouble);
  torch::Tensor all = torch::empty({size(), 4}, torch::kDouble);
  train::session().group(Group::kWorld).all_gather(all.view({-1}), mine);
  Totals totals;
  totals.loss = all.select(1, 0).mean().item<double>();
  totals.bubble_share = all.select(1, 1).mean().item<double>();
  totals.stop = all.select(1, 3).max().item<double>() > 0;
  for (int i = 0; i < size(); ++i) {
    totals.memory.push_back(static_cast<std::int64_t>(all[i][2].item<double>()));
  }
  return totals;
}

void Trainer::save(std::int64_t steps_done) {
  SaveOptions options;
  options.full = job_.checkpoint.full;
  options.num_kept_checkpoints = job_.checkpoint.keep;
  OrderedJson content;
  content["step"] = steps_done;
  content["sampler"] = OrderedJson::parse(data::to_json(sampler_->state()));
  options.user_content = content.dump();
  try {
    const Saved saved = train::save(
        *core_, &*optimizer_, job_.checkpoint.directory, str("step_", steps_done), options);
    if (rank() == 0) {
      write_model_config(saved.path, model_->preset, job_.data.directory);
    }
    tell(str("saved ", saved.path, ", state ", saved.state_hash));
    for (const std::string& warning : saved.warnings) {
      tell("warning: " + warning);
    }
  } catch (const Error& error) {
    // A full disk must not cost the run; the checkpoint before is still there.
    tell(str("warning: not saved, training goes on: ", error.what()));
  }
}

int Trainer::run() {
  using Clock = std::chrono::steady_clock;
  bool stopped = false;
  std::int64_t saved_at = first_step_;
  std::int64_t done = first_step_;
  while (done < job_.steps && !stopped) {
    const auto start = Clock::now();
    const double loss = train_step(done);
    const std::chrono::duration<double> seconds = Clock::now() - start;
    const Totals totals = add_up(loss, seconds.count() * 1e6);
    stopped = totals.stop;

    report::StepRecord record;
    record.step = done;
    record.loss = totals.loss;
    record.step_seconds = seconds.count();
    record.tokens_per_second =
        static_cast<double>(job_.data.batch * job_.data.sequence * job_.accumulation) /
        seconds.count();
    record.learning_rate = job_.optimizer.rate.at(done);
    record.grad_norm = grad_norm_;
    record.bubble_share = totals.bubble_share;
    record.memory_bytes = totals.memory;
    if (progress_) {
      progress_->step(record);
    }
    if (log_) {
      log_->write(record);
    }
    if (done == first_step_) {
      log_partition();
    }
    ++done;
    if (job_.validation.every > 0 && (done % job_.validation.every == 0 || done == job_.steps)) {
      const double value = validate();
      tell(str("validation after step ", done, ": loss ", value));
      if (log_) {
        log_->write(report::ValidationRecord{done - 1, value});
      }
      train::session().recorder->take(); // the timeline is of training
    }
    if (job_.checkpoint.every > 0 && done % job_.checkpoint.every == 0) {
      save(done);
      saved_at = done;
    }
  }
  if (!job_.checkpoint.directory.empty() && saved_at != done) {
    save(done);
  }
  if (stopped) {
    tell(str("stopped by a signal after step ", done, "; go on with --resume"));
  } else if (!job_.sample.prompt.empty()) {
    sample(done - 1);
  }
  log_traffic(done - 1);
  write_timeline();
  if (progress_) {
    progress_->finish();
  }
  return 0;
}

} // namespace tessera::cli
