#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/autograd/gradient_order.h"
#include "tessera/comm/world.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/runtime/buffer_order.h"
#include "tessera/runtime/call_record.h"
#include "tessera/runtime/exchange.h"
#include "tessera/runtime/message.h"
#include "tessera/runtime/module_directory.h"
#include "tessera/runtime/order.h"
#include "tessera/runtime/script_stream.h"
#include "tessera/runtime/static_run.h"
#include "tessera/runtime/worker.h"
#include "tessera/schedule/schedule.h"
#include "tessera/timeline/timeline.h"
#include "tessera/transport/transport.h"

namespace tessera::runtime {

/// What the server of one rank works with; all outlive it.
struct ServerContext {
  const ModuleDirectory* modules = nullptr;
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
  /// Gradients are added, and buffers changed, in an order that does not depend
  /// on timing.
  bool reproducible = false;
  /// Told at once, with the error's text, when a task of this rank has failed:
  /// other ranks may be waiting for it in a collective.
  std::function<void(const std::string&)> failed;
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
  /// Steps of one kind take the same path, but for data-dependent flow. Equal
  /// kinds on one rank are equal on all.
  std::uint64_t kind = 0;
  /// The user's step function on one microbatch; used on pp rank 0 only.
  std::function<c10::IValue(int microbatch)> run;
  /// One task runs at a time and there is one replica: the step draws from the script's own stream
  /// of random numbers, as a single process would. Not in recorded and repeated steps.
  bool script_stream = false;
  /// Static mode: what the step did is written here, or what it repeats. At
  /// most one of the two, and the same on all ranks of the pipeline.
  Recording* recording = nullptr;
  const StaticProgram* program = nullptr;
};

/// Runs the steps of one pipeline rank: requests of other ranks, the module
/// calls of its own tasks, and on pp rank 0 the schedule of microbatches.
///
/// Tasks run on workers, of which exactly one at a time holds the baton, so
/// user code never races. Whoever holds the baton runs the loop: a worker that
/// waits or has finished chooses what comes next, and hands the baton over only
/// when that is another worker's; the thread that called run_step begins and
/// ends the step. Collective over the pipeline (and the order group). Source:
/// Karakus et al. 2021, sections 4.2-4.3, appendix B.
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
  at::Tensor tensor_named(const torch::nn::Module& module, const std::string& name) override;

  /// From an Exchange: other tasks run until the answer to this call is there.
  void wait_for_answer(Task& task, const Fields& fields, int owner);
  /// From a StaticExchange, while an exception is handled: `task` does not
  /// follow its program. User code may catch the exception; the step fails.
  void left_program(const Task& task);
  int rank() const {
    return context_.rank;
  }

  /// From RemoteBackward: gradients of a call's inputs from its owner.
  /// `inputs_only`: none of the parameters that the call used.
  std::vector<torch::Tensor> call_backward(
      std::uint64_t call,
      int owner,
      int module,
      int microbatch,
      const std::vector<torch::Tensor>& gradients,
      bool inputs_only);

  /// A module's path, for messages.
  std::string name_of(int module) const {
    return context_.modules->name_of(module);
  }

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
  void loop();
  /// Waits for something to run. Nothing: the step is over.
  std::optional<Choice> next_choice();
  /// On a worker; nothing: the server thread must go on.
  std::optional<Choice> choose_on_worker();
  /// On a worker, from inside its task: other tasks run until it is chosen.
  void pause();
  /// On a worker, behind its task: see Worker::After.
  std::shared_ptr<Task> after(std::shared_ptr<Task> done);
  bool root_done() const;
  bool follows() const {
    return context_.order != nullptr && !context_.order->leads() && static_ == nullptr;
  }
  void open_exchange();
  // What the key "reproducible" fixes (server_order.cpp).
  void follow_directory();
  void begin_orders();
  bool may_start(const Choice& choice) const;
  bool runs_forward_alone() const;
  void turn_ends(const Task& task);
  void forward_ended(int microbatch);
  void expect_backward(CallRecord& record, int microbatch);
  void add_what_is_left();
  void record_turn(const Task& task, const Choice& choice);
  // Static steps (server_static.cpp).
  std::optional<Choice> next_static_choice();
  Choice choice_of(const PlannedTurn& turn);
  bool static_done() const;
  void give_step_up(std::string text);
  void check_mode(const Fields& fields, int source);
  std::string static_state() const;
  void receive_order();
  /// All that could run now, best first.
  std::vector<Choice> choices() const;
  /// Marks a choice as running: the task that its worker gets.
  std::shared_ptr<Task> begin(const Choice& choice);
  void end_turn(Task& task);
  void reject(const Choice& choice);
  void settle(const std::shared_ptr<Task>& task);
  std::string failure_of(const Task& task) const;
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
  void fail(std::string text);
  void cancel_suspended();
  void end_step(bool failed);
  std::string state() const;

  ServerContext context_;
  // Null unless the work is reproducible, the second also where no buffer is.
  std::unique_ptr<GradientOrder> gradient_order_;
  std::unique_ptr<BufferOrder> buffer_order_;
  std::vector<at::Tensor> parameters_; // of this rank, for the order
  int ordered_revision_ = -1; // of the directory, for which the orders were made
  std::binary_semaphore server_turn_{0};
  std::vector<std::unique_ptr<Worker>> workers_;

  // Of the step that runs:
  const StepWork* work_ = nullptr;
  Fields caller_modes_; // grad mode and autocast of run_step's caller
  std::exception_ptr error_; // from choose_on_worker, for run_step's caller
  schedule::Progress progress_;
  std::vector<std::shared_ptr<Task>> root_tasks_;
  std::deque<std::shared_ptr<Task>> ready_; // requests not yet started
  std::vector<std::pair<Worker*, std::shared_ptr<Task>>> suspended_;
  std::unordered_map<std::uint64_t, CallRecord> records_;
  std::vector<c10::IValue> results_;
  /// What the generator is given when the step ends.
  std::optional<RandomState> random_after_;
  std::unique_ptr<ScriptStream> script_stream_; // null: tasks have streams of their own
  std::optional<transport::Parcel> end_;
  std::optional<std::string> failure_;
  DynamicExchange dynamic_;
  std::unique_ptr<Exchange> other_exchange_; // one that is not dynamic_
  Exchange* exchange_ = nullptr;
  StaticExchange* static_ = nullptr; // in a static step
  bool gave_up_ = false; // pp rank 0 is to end the step
  // Of a task whose caller had its answer: perhaps the step had ended there.
  std::optional<std::string> failed_late_;
  bool reported_ = false;
  int reports_ = 0; // of other ranks, on pp rank 0
  std::deque<transport::Parcel> early_; // of steps not yet begun here
  std::chrono::steady_clock::time_point idle_since_;
  std::map<int, std::string> answers_; // to this rank's probe, by global rank
  // Followers: what the leader announced and has not run here yet.
  std::optional<std::uint64_t> ordered_;
  bool orders_ended_ = false;
};

} // namespace tessera::runtime
