#pragma once

#include "tessera/runtime/module_directory.h"
#include "tessera/runtime/order_channel.h"
#include "tessera/runtime/replay/static_mode.h"
#include "tessera/runtime/server.h"
#include "tessera/schedule/schedule.h"
#include "tessera/train/step_runner.h"

namespace tessera::train {

/// A schedule that can be exchanged between steps for another.
class ChosenSchedule : public schedule::Schedule {
 public:
  void choose(std::unique_ptr<schedule::Schedule> schedule) {
    chosen_ = std::move(schedule);
  }
  std::optional<schedule::Action> next(const schedule::Progress& progress) const override {
    return chosen_->next(progress);
  }
  std::vector<int> positions(schedule::Phase phase, int microbatches) const override {
    return chosen_->positions(phase, microbatches);
  }

 private:
  std::unique_ptr<schedule::Schedule> chosen_;
};

/// Several pipeline ranks: the step function runs on pp rank 0, and every rank serves the modules
/// that it owns.
class ServerRunner : public StepRunner {
 public:
  explicit ServerRunner(Context& context);

  void add(const model::ModelCore& model) override;
  void remove(const model::ModelCore& model) override;
  void run_one_at_a_time() override;
  void refuse_waiting(const model::ModelCore& model) override;
  void admit_waiting() override;
  void check_not_waiting(const model::ModelCore& model) const override;

  std::vector<c10::IValue> run(const Work& work) override;
  void backward(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& gradients)
      override;
  void completed(const StepCall& call, double seconds) override;

 private:
  void make_static_mode();

  Context& context_;
  runtime::ModuleDirectory directory_;
  ChosenSchedule schedule_;
  std::unique_ptr<runtime::OrderChannel> order_; // null: each rank its own order
  std::unique_ptr<runtime::Server> server_;
  std::unique_ptr<runtime::StaticMode> static_mode_; // null: off
  std::int64_t steps_run_ = 0; // equal on all ranks; never goes back
};

} // namespace tessera::train
