#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/nn/interceptor.h"
#include "tessera/runtime/call_record.h"
#include "tessera/runtime/message.h"
#include "tessera/runtime/module_table.h"
#include "tessera/runtime/order.h"
#include "tessera/runtime/worker.h"
#include "tessera/schedule/schedule.h"
#include "tessera/timeline/timeline.h"
#include "tessera/transport/transport.h"

namespace tessera::runtime {

/// What the server of one rank works with; all outlive it.
struct ServerContext {
  const ModuleTable* modules = nullptr;
  transport::Transport* transport = nullptr;
  std::vector<int> pp_ranks; // global rank of each pp rank of this pipeline
  const schedule::Schedule* schedule = nullptr;
  OrderChannel* order = nullptr; // nullptr: own order
  timeline::Recorder* recorder = nullptr;
  std::chrono::milliseconds timeout{std::chrono::minutes(30)};
  std::uint64_t seed = 0;
  /// Each task draws from a stream of its own. False where several servers
  /// share a process, and with it the one default generator (tests).
  bool random_streams = true;
  int rank = 0; // global, for messages
};

/// What to do in one step.
struct StepWork {
  /// Of the training: seeds the random streams, names events. May go back, when
  /// an older checkpoint is loaded.
  std::int64_t step = 0;
  /// Rises with every step that the transport sees, and is equal on all ranks:
  /// what arrives late, from a step that failed, is known by it.
  std::int64_t serial = 0;
  int microbatches = 1;
  /// The user's step function on one microbatch; used on pp rank 0 only.
  std::function<c10::IValue(int microbatch)> run;
};

/// Runs the steps of one pipeline rank: requests of other ranks, the module
/// calls of its own tasks, and on pp rank 0 the schedule of microbatches.
///
/// The loop runs on the thread that calls run_step; tasks run on workers, of
/// which exactly one at a time holds the baton, so user code never races.
/// Collective over the pipeline (and the order group).
/// Source: Karakus et al. 2021, sections 4.2-4.3, appendix B.
class Server : public nn::Interceptor {
 public:
  explicit Server(ServerContext context);
  ~Server() override;

  /// What the step function returned for each microbatch, on every pp rank.
  /// Throws: UserError with rank and text when user code failed anywhere in the
  /// pipeline (the next step may follow; gradients are undefined until they
  /// are zeroed); CommError when a peer is lost or the timeout passes.
  std::vector<c10::IValue> run_step(const StepWork& work);

  /// From the step function: waits until the schedule starts this microbatch's
  /// backward, then runs it.
  void backward(
      const std::vector<torch::Tensor>& tensors,
      const std::vector<torch::Tensor>& gradients);

  // nn::Interceptor, called on workers.
  bool wants(const torch::nn::Module& module) override;
  c10::IValue call(
      torch::nn::Module& module,
      const nn::CallKey& key,
      const c10::IValue& args,
      int first,
      int last) override;
  int range_end(const torch::nn::Module& sequential, int first) override;

  /// From RemoteBackward: gradients of a call's inputs from its owner.
  std::vector<torch::Tensor> call_backward(
      std::uint64_t call,
      int owner,
      int module,
      int microbatch,
      const std::vector<torch::Tensor>& gradients);

 private:
  struct Choice {
    std::shared_ptr<Task> task; // to start or to go on with
    Worker* worker = nullptr; // that holds it, when suspended
    int microbatch = 0;
    Phase phase = Phase::kForward;
    bool resume = false;
    std::uint64_t key = 0; // the same on all replicas
  };

  bool root() const {
    return context_.modules->pp_rank() == 0;
  }
  void loop(const StepWork& work);
  bool root_done() const;
  bool follows() const {
    return context_.order != nullptr && !context_.order->leads();
  }
  void receive_order();
  /// All that could run now, best first.
  std::vector<Choice> choices() const;
  void execute(const Choice& choice);
  void reject(const Choice& choice);
  void settle(Worker* worker, const std::shared_ptr<Task>& task);
  std::shared_ptr<Task> make_root_task(int microbatch, const StepWork& work);
  std::shared_ptr<Task> make_call_task(transport::Parcel parcel);
  void run_forward(Task& task);
  void run_backward(Task& task);
  void take(transport::Parcel parcel);
  void take_step_message(const Fields& fields, transport::Parcel parcel);
  void take_all();
  void wait_for_message();
  void check_timeout();
  std::string ask_others();
  Worker& idle_worker();
  transport::Parcel
  await(Task& task, std::uint64_t call, int owner, int module);
  void fail(std::string text);
  void cancel_suspended();
  void end_step(bool failed);
  std::string state() const;

  ServerContext context_;
  std::vector<std::unique_ptr<Worker>> workers_;

  // Of the step that runs:
  const StepWork* work_ = nullptr;
  schedule::Progress progress_;
  std::vector<std::shared_ptr<Task>> root_tasks_;
  std::deque<std::shared_ptr<Task>> ready_; // requests not yet started
  std::vector<std::pair<Worker*, std::shared_ptr<Task>>> suspended_;
  std::unordered_map<std::uint64_t, CallRecord> records_;
  std::vector<c10::IValue> results_;
  std::optional<transport::Parcel> end_;
  std::optional<std::string> failure_;
  std::deque<transport::Parcel> early_; // of steps not yet begun here
  std::chrono::steady_clock::time_point idle_since_;
  std::map<int, std::string> answers_; // to this rank's probe, by global rank
  // Followers: what the leader announced and has not run here yet.
  std::optional<std::uint64_t> ordered_;
  bool orders_ended_ = false;
};

} // namespace tessera::runtime
