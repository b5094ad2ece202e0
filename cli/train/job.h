#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/config.h"
#include "tessera/optim/learning_rate.h"
#include "tessera/optim/loss_scaler.h"
#include "tessera/optim/plateau.h"

#include "cli/train/bad_steps.h"
#include "models/data/mixture_part.h"

namespace tessera::cli {

/// One training job as its file says: the sections of `tessera train CONFIG`.
struct Job {
  config::Config parallel; // "parallel": the library's own keys

  struct Model {
    std::string name = "gpt-mini";
    std::string options = "{}"; // JSON, written over the preset's
    /// Where the first step's parameters come from (cli/weights); "": the seed. The config.json
    /// beside them is the model then, unless a name is said.
    std::string init_from;
    bool other_tokenizer = false; // the data may have another tokenizer than init_from
    bool named = false; // the file says a name
  } model;

  struct Data {
    std::string directory; // made by `tessera data prepare`
    std::vector<data::MixturePart> mixture; // or several of them with weights
    std::int64_t sequence = 128; // tokens in a sample
    std::int64_t batch = 16; // samples in a step, over all replicas
    bool reset_attention_mask = false; // tokens attend to their own document alone
    bool reset_position_ids = false; // and their positions count from 0 in it
  } data;

  struct Optimizer {
    std::string type = "adamw"; // or "adamw_8bit", "adam", "lamb", "novograd", "sgd"
    optim::LearningRate rate;
    optim::PlateauOptions plateau; // with rate.decay "plateau"
    double weight_decay = 0.01;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8; // but for sgd
    double momentum = 0.9; // sgd
    double clip_norm = 1.0; // 0: no clipping
    bool stochastic_rounding = false; // adamw_8bit in bf16: no f32 masters
  } optimizer;

  struct Checkpoint {
    std::string directory; // "": none
    std::int64_t every = 0; // steps; 0: at the end and on a signal only
    int keep = 2;
    int keep_every = 0; // every so many-th save stays for good; 0: none
    bool keep_best = false; // and so does the one with the lowest validation loss
    bool full = false;
    bool background = false; // training goes on while files are written
  } checkpoint;

  BadStepPolicy bad_steps;

  /// With precision "fp16"; the library's own defaults begin far above what f16 holds.
  optim::DynamicLossArgs loss_scale{.init_scale = 65536, .delayed_shift = 2};

  struct Validation {
    std::int64_t every = 0; // steps; 0: never
    std::int64_t batches = 4;
  } validation;

  struct Sample {
    std::string prompt; // "": none
    std::int64_t tokens = 40;
    double temperature = 0.8;
    std::int64_t top_k = 40;
  } sample;

  /// "given": `parallel` says how to train; "auto": the planner decides in
  /// place, on the ranks that are there.
  std::string strategy = "given";
  /// With "auto": as if no rank had more memory; 0: what is free.
  double memory_limit_gib = 0;
  /// What "auto" chose, as a configuration; "" with "given".
  std::string plan;
  std::int64_t steps = 100;
  std::int64_t accumulation = 1; // steps whose gradients add up
  /// "none", or how layers are recomputed in the backward: CheckpointOptions::strategy. Attentions
  /// alone: parallel.checkpoint_attentions.
  std::string activation_checkpointing = "none";
  /// Or "bf16" or "fp16", with f32 master weights; the keys of `parallel` follow it.
  std::string precision = "f32";
  std::int64_t log_every = 10; // steps between printed lines

  std::string said = "{}"; // the file with the settings, plain JSON
};

/// The folders that a job trains on: its mixture, or the only one.
std::vector<data::MixturePart> folders_of(const Job& job);

/// Whether parameters and activations take 16 bits.
inline bool in_16_bits(const Job& job) {
  return job.precision != "f32";
}

/// Whether the optimizer has f32 masters of 16-bit parameters, and their gradients in f32.
inline bool has_masters(const Job& job) {
  return in_16_bits(job) && !job.optimizer.stochastic_rounding;
}

/// What messages and logs call the model: its preset, or the weights whose configuration it has.
inline const std::string& model_name(const Job& job) {
  return job.model.named || job.model.init_from.empty() ? job.model.name : job.model.init_from;
}

/// Reads and checks a job: the text of its file, in which comments and commas
/// behind the last entry may stand, and settings over it ("data.batch=8", see
/// read_job_text).
/// Throws: ConfigError with every error of the file, naming section and key,
/// what was found and what is allowed.
Job parse_job(
    const std::string& text_of_file,
    const std::string& origin,
    const std::vector<std::string>& settings = {});
Job load_job(const std::string& path, const std::vector<std::string>& settings = {});

/// The job as it runs, for logs: what its file and settings say, and all keys
/// of `parallel`. A JSON object.
std::string effective_job(const Job& job);

} // namespace tessera::cli
