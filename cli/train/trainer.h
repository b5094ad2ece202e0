#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/report/run_log.h"
#include "tessera/tessera.h"
#include "tessera/timeline/timeline.h"
#include "tessera/tracer/delayed_init.h"

#include "cli/train/job.h"
#include "cli/train/progress.h"
#include "models/data/batch.h"
#include "models/data/sampler.h"
#include "models/data/token_file.h"
#include "models/data/tokenizer.h"
#include "models/registry.h"

namespace tessera::cli {

struct TrainArguments {
  std::string log; // "": none
  std::string timeline; // events of the last steps, "": none
  bool resume = false;
};

/// Whether a signal asked this process to end after the step in hand.
bool stop_asked();

/// Trains a GPT as a job says, on every rank of the world.
/// Collective over the world. Threads: the main thread.
class Trainer {
 public:
  /// Throws: ConfigError when job, data and world do not fit each other.
  Trainer(Job job, TrainArguments arguments);
  ~Trainer();

  /// Returns the process's exit status: 0 also when a signal ended the run
  /// early with everything saved.
  int run();
  /// Notes in the log that the run failed, and why. Not collective.
  void failed(const std::string& reason) noexcept;

 private:
  struct Totals { // of one step, over the world
    double loss = 0;
    std::optional<double> bubble_share; // none without a pipeline
    bool stop = false;
    std::vector<std::int64_t> memory;
  };

  void build_model();
  void build_data();
  void build_optimizer();
  void resume();
  void start_log();
  void log_partition();
  double train_step(std::int64_t number);
  double validate();
  void sample(std::int64_t step);
  void save(std::int64_t steps_done);
  /// Keeps what was recorded since the last call as events of `step`, whose `pass`-th batch ran.
  void keep_events(std::int64_t step, std::int64_t pass);
  Totals add_up(std::int64_t step, double loss);
  /// Since this process started to train. Units: seconds.
  double elapsed() const;
  void log_end(const std::string& state, const std::string& reason);
  void log_traffic(std::int64_t step);
  void write_timeline();
  void tell(const std::string& text);

  Job job_;
  TrainArguments arguments_;
  std::optional<models::AnyModel> model_;
  std::optional<Model> distributed_;
  std::optional<DistributedOptimizer> optimizer_;
  std::optional<data::TokenDataset> train_data_;
  std::optional<data::TokenDataset> validation_data_;
  std::optional<data::Sampler> sampler_;
  std::optional<report::RunLogWriter> log_;
  std::optional<Progress> progress_; // rank 0
  std::vector<timeline::Event> kept_events_; // of the last steps
  bool events_lost_ = false; // of the step in hand
  std::string run_id_; // rank 0
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::int64_t first_step_ = 0; // steps done before this start
  std::int64_t steps_done_ = 0; // of the training
  std::int64_t local_batch_ = 0;
  std::optional<double> grad_norm_;
};

} // namespace tessera::cli
