#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/json/parse.h"
#include "tessera/report/run_log.h"
#include "tessera/tessera.h"
#include "tessera/timeline/timeline.h"

#include "cli/train/bad_steps.h"
#include "cli/train/job.h"
#include "cli/train/progress.h"
#include "cli/train/run_lock.h"
#include "cli/weights/start_from.h"
#include "models/data/data_hashes.h"
#include "models/data/mixture.h"
#include "models/data/token_file.h"
#include "models/data/tokenizer.h"
#include "models/objectives/documents.h"
#include "models/objectives/objective.h"
#include "models/registry.h"

namespace tessera::cli {

struct TrainArguments {
  std::string log; // "": none
  std::string timeline; // events of the last steps, "": none
  bool resume = false;
  bool accept_other_data = false; // with resume: other data than the checkpoint's
};

/// Whether a signal asked this process to end after the step in hand.
bool stop_asked();

/// Trains a model of texts or interactions as a job says, on every rank of the world.
/// Collective over the world. Threads: the main thread.
class Trainer {
 public:
  /// Throws: ConfigError when job, data, checkpoint folder and world do not fit
  /// each other, or another run writes to the same places.
  Trainer(Job job, TrainArguments arguments);
  ~Trainer();

  /// Returns the process's exit status: 0 when the job is done,
  /// kResumableStatus when a signal ended it with everything saved, else 1.
  /// Throws: AgreedError when a step or the state is not finite.
  int run();
  /// Notes in the log that the run failed, and why. Not collective.
  void failed(const std::string& reason) noexcept;
  /// Ends a save in the background where every rank ends the run alike. Collective.
  void finish_pending_save() {
    tell_not_saved(finish_save());
  }

 private:
  struct Totals { // of one step, over the world
    double loss = 0;
    std::optional<double> bubble_share; // none without a pipeline
    bool stop = false;
    bool written = false; // the files of a save in the background, by every rank
    std::vector<std::int64_t> memory;
    std::vector<std::int64_t> peaks; // empty where nothing counts tensors
    std::vector<std::int64_t> offloaded; // empty without offload_activations
  };

  void build_data();
  models::Documents documents_of(const std::vector<data::TokenDataset>& datasets, const char* file)
      const;
  data::MixtureOptions samples_of(const std::vector<data::TokenDataset>& datasets) const;
  /// Finds out before the model is built whether checkpoint folder and log can
  /// be written, and keeps them for this run.
  void prepare_folders(std::int64_t parameters);
  void tell_taken(const RunLock& lock);
  void build_model();
  void build_optimizer();
  /// Whether there was something to go on from.
  bool resume();
  /// Throws: ConfigError when a checkpoint was made with other data.
  void check_data(const OrderedJson& content);
  void warn_of_other_settings(const OrderedJson& content);
  void start_log();
  void log_partition();
  double train_step(std::int64_t number);
  /// Whether the update of this step is left to the optimizer; every rank gets one answer. It is
  /// when gradients overflow in fp16 and the loss scale may fall: the optimizer knows what to do.
  bool judge_update(std::int64_t step, double loss);
  /// Throws: AgreedError that names what is not finite, on every rank.
  void check_state_is_finite(std::int64_t steps_done);
  double validate();
  /// Of the update with this number, from 0.
  double learning_rate(std::int64_t step) const;
  /// With decay "plateau": what the loss of the last validation does to the rate. Collective.
  void follow_plateau(std::int64_t steps_done);
  void sample(std::int64_t step);
  /// Saves, or begins to. Returns why nothing was saved, "" when it was or when it is not known
  /// yet.
  std::string save(std::int64_t steps_done);
  /// Waits for a save in the background, if there is one. Returns why it failed, "" when it did
  /// not.
  std::string finish_save();
  void tell_saved(const Saved& saved);
  /// A save that failed must not cost the run: the checkpoint before is still there.
  void tell_not_saved(const std::string& reason);
  int end(bool stopped, std::int64_t done, const std::string& not_saved);
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
  models::Preset preset_;
  std::shared_ptr<const models::Objective> objective_;
  std::optional<models::AnyModel> model_;
  std::optional<StartingPoint> start_; // until the model has its parameters
  std::string start_warning_; // of its weights
  std::optional<Model> distributed_;
  std::optional<DistributedOptimizer> optimizer_;
  /// The job's options of its groups, until the first update has taken them.
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> asked_options_;
  std::optional<BackgroundSave> saving_;
  std::vector<data::MixturePart> folders_;
  std::vector<data::TokenDataset> train_data_; // of each folder
  std::vector<data::TokenDataset> validation_data_;
  models::Documents train_documents_; // without indexes unless the job asks for them
  models::Documents validation_documents_;
  std::optional<data::MixtureSampler> sampler_;
  std::optional<report::RunLogWriter> log_;
  std::optional<Progress> progress_; // rank 0
  std::vector<timeline::Event> kept_events_; // of the last steps
  bool events_lost_ = false; // of the step in hand
  std::string run_id_; // rank 0
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::int64_t first_step_ = 0; // steps done before this start
  std::int64_t steps_done_ = 0; // of the training
  DataRows rows_; // of a batch, on this rank
  std::optional<double> grad_norm_;
  std::int64_t validated_at_ = -1; // steps done at the last validation
  double validation_loss_ = 0; // which found this
  BadStepJudge judge_;
  std::optional<optim::Plateau> plateau_; // with decay "plateau"
  std::string skipped_; // why the last step's update was left out, or ""
  double loss_scale_ = 1; // of the last step
  std::int64_t overflows_ = 0; // of this start
  std::vector<data::DataHashes> data_hashes_; // of each folder
  std::optional<RunLock> log_lock_; // rank 0
  std::optional<RunLock> folder_lock_; // rank 0
};

} // namespace tessera::cli
