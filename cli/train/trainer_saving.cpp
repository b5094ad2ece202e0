// How the trainer saves: what goes into a checkpoint, which ones stay, and what is told of it.
#include <algorithm>

#include "cli/train/model_config.h"
#include "cli/train/trainer.h"

namespace tessera::cli {

namespace {

/// What decides which samples a step takes, and in which precision it computes. A checkpoint keeps
/// it, so that a resumed run can say what has changed.
OrderedJson settings_of(const Job& job) {
  OrderedJson settings;
  settings["parallel.seed"] = job.parallel.seed;
  settings["data.sequence"] = job.data.sequence;
  settings["data.batch"] = job.data.batch;
  settings["accumulation"] = job.accumulation;
  settings["precision"] = job.precision;
  return settings;
}

std::string effect_of(const std::string& setting) {
  if (setting == "parallel.seed") {
    return " (the order of samples is another one from here: of this epoch some may come twice)";
  }
  if (setting == "data.sequence") {
    return " (the place in the data is counted in samples, which have another length now)";
  }
  return "";
}

} // namespace

void Trainer::warn_of_other_settings(const OrderedJson& content) {
  if (!content.contains("settings")) {
    return; // of an earlier version
  }
  const OrderedJson& kept = content.at("settings");
  const OrderedJson settings = settings_of(job_);
  std::string text;
  for (const auto& [name, now] : settings.items()) {
    if (kept.contains(name) && kept.at(name) != now) {
      text +=
          str("\n  ",
              name,
              ": the checkpoint has ",
              kept.at(name).dump(),
              ", the job ",
              now.dump(),
              effect_of(name));
    }
  }
  if (!text.empty()) {
    tell("warning: going on with other settings than the checkpoint was made with:" + text);
  }
}

std::string Trainer::save(std::int64_t steps_done) {
  check_state_is_finite(steps_done);
  SaveOptions options;
  options.full = job_.checkpoint.full;
  // A checkpoint is known to be good once a step from it was finite. The one
  // before stays until then, and nothing goes while the state is in doubt.
  options.num_kept_checkpoints =
      job_.checkpoint.keep == 0 || judge_.in_doubt() ? 0 : std::max(2, job_.checkpoint.keep);
  options.keep_every = job_.checkpoint.keep_every;
  options.keep_best = job_.checkpoint.keep_best;
  if (validated_at_ == steps_done) {
    options.score = validation_loss_;
  }
  OrderedJson content;
  content["step"] = steps_done;
  content["sampler"] = OrderedJson::parse(sampler_->state());
  content["bad_steps"] = OrderedJson::parse(judge_.to_json());
  if (plateau_) {
    content["plateau"] = OrderedJson::parse(plateau_->to_json());
  }
  if (!job_.plan.empty()) {
    content["strategy"] = {{"processes", size()}, {"plan", OrderedJson::parse(job_.plan)}};
  }
  content["settings"] = settings_of(job_);
  content["data"] = OrderedJson::parse(data::hashes_to_json(folders_, data_hashes_));
  options.user_content = content.dump();
  const std::string& folder = job_.checkpoint.directory;
  const std::string tag = str("step_", steps_done);
  try {
    if (job_.checkpoint.background) {
      saving_.emplace(save_in_background(*distributed_, *optimizer_, folder, tag, options));
    } else {
      tell_saved(tessera::save(*distributed_, *optimizer_, folder, tag, options));
    }
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string Trainer::finish_save() {
  if (!saving_) {
    return "";
  }
  std::string reason;
  try {
    tell_saved(saving_->finish());
  } catch (const Error& error) {
    reason = error.what();
  }
  saving_.reset();
  return reason;
}

void Trainer::tell_saved(const Saved& saved) {
  if (rank() == 0) {
    write_model_config(saved.path, model_->preset, folders_.front().directory);
  }
  tell(str("saved ", saved.path, ", state ", saved.state_hash));
  for (const std::string& warning : saved.warnings) {
    tell("warning: " + warning);
  }
}

void Trainer::tell_not_saved(const std::string& reason) {
  if (!reason.empty()) {
    tell(str("warning: not saved, training goes on: ", reason));
  }
}

} // namespace tessera::cli
