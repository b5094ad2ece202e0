#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/recompute/before_region.h"
#include "tessera/runtime/module_calls.h"
#include "tessera/runtime/reproducible_orders.h"
#include "tessera/runtime/server_context.h"
#include "tessera/runtime/stall_report.h"
#include "tessera/runtime/step_control.h"
#include "tessera/runtime/step_state.h"
#include "tessera/runtime/worker.h"

namespace tessera::runtime {

/// Runs the steps of one pipeline rank: requests of other ranks, the module
/// calls of its own tasks, and on pp rank 0 the schedule of microbatches.
///
/// Tasks run on workers, of which exactly one at a time holds the baton, so user code never races.
/// Whoever holds the baton runs the loop: a worker that waits or has finished chooses what runs
/// next, and passes the baton only when that is another worker's task; the thread that called
/// run_step begins and ends the step. How messages travel and which task runs next are the step's
/// Exchange and TurnSource; the server does not know which it has.
/// Collective over the pipeline (and the order group). Source: Karakus et al.
/// 2021, sections 4.2-4.3, appendix B.
class Server : private StepControl, private recompute::BeforeRegion {
 public:
  explicit Server(ServerContext context);
  ~Server() override;

  /// Runs a step and returns what the step function returned for each microbatch, on every pp rank.
  /// Throws: UserError with rank and text when user code failed anywhere in the
  /// pipeline (the next step may follow; gradients are undefined until they
  /// are zeroed); CommError when a peer is lost or the timeout passes.
  std::vector<c10::IValue> run_step(const StepWork& work);

  /// Called from the step function: waits until the schedule starts this microbatch's backward,
  /// then runs it.
  void backward(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& gradients) {
    calls_.backward(tensors, gradients);
  }

 private:
  // The step (server.cpp).
  void open_step(const StepWork& work);
  std::unique_ptr<StepState> close_step();
  void loop();
  /// Blocks until a task can run; returns nullopt when the step is over.
  std::optional<Choice> next_choice();
  bool step_over() const;
  void wait_for_message();
  void check_timeout();
  std::string state() const;
  void finish_orders();
  void send_end();
  std::shared_ptr<Task> make_root_task(int microbatch);
  std::shared_ptr<Task> make_call_task(const Fields& request, int source, c10::IValue body);
  void settle(const std::shared_ptr<Task>& task);
  void refuse(const Choice& choice);
  std::string failure_of(const Task& task) const;
  void cancel_suspended();

  // Messages (server_messages.cpp).
  void take_all();
  void take(transport::Parcel parcel);
  void take_step_message(const Fields& fields, transport::Parcel parcel);
  void take_response(const Fields& fields, transport::Parcel parcel);
  void take_end(const Fields& fields, const transport::Parcel& parcel);

  // The baton (server_baton.cpp).
  void pause() override;
  /// A backward that no other rank waits for lets turns go first that others wait for.
  void region_comes() override;
  void wait_for_answer(Task& task, const Fields& fields, int rank) override;
  void abort(std::string text) override;
  bool aborted() const override {
    return step_->aborted;
  }
  /// Worker thread only: passes the baton for this choice, and waits until the task gets it again.
  void give_away(const std::optional<Choice>& choice);
  /// Worker thread only. Returns nullopt when the server thread must take over.
  std::optional<Choice> choose_on_worker();
  /// Called on a worker after its task, see Worker::After.
  std::shared_ptr<Task> after(std::shared_ptr<Task> done);
  Worker& worker_of(const Choice& choice);
  /// Marks a choice as running and returns the task that its worker gets.
  std::shared_ptr<Task> begin(const Choice& choice);
  void start_turn(Task& task) const;
  void end_turn(Task& task);

  ServerContext context_;
  ReproducibleOrders orders_;
  ModuleCalls calls_;
  StallInquiry inquiry_;
  std::unique_ptr<StepState> step_; // nullptr: no step runs
  std::deque<transport::Parcel> early_; // of steps not yet begun here
  WorkerPool workers_; // destroyed first: its threads use all of the above
};

} // namespace tessera::runtime
