#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <semaphore>
#include <thread>

#include "tessera/runtime/message.h"
#include "tessera/runtime/random_state.h"
#include "tessera/transport/transport.h"

namespace tessera::runtime {

/// Thrown inside a suspended task whose step was given up; unwinds user code.
class StepCancelled : public std::exception {
 public:
  const char* what() const noexcept override {
    return "the step was cancelled because another part of it failed";
  }
};

/// One unit of work of a step: the user's step function for a microbatch, or
/// one phase of a module call that another rank asked for.
struct Task {
  enum class Kind { kRoot, kCall };
  Kind kind = Kind::kRoot;
  std::uint64_t id = 0; // names the task on every replica
  int source = -1; // global rank that asked; -1 for the root
  Fields request; // microbatch and phase for the root
  c10::IValue body;
  std::function<void()> run;

  // While it runs:
  std::uint32_t calls = 0; // remote calls so far, for their ids
  std::uint32_t turns = 0; // times it was given the baton
  std::optional<RandomState> random; // none: the generator is left alone
  // While it waits: for the response to this call, or (0) for the schedule.
  std::uint64_t awaits = 0;
  int awaits_rank = -1;
  int awaits_module = -1;
  std::optional<transport::Parcel> response;
  std::optional<double> turn_start_us; // of the turn that runs, when recorded
  bool responded = false; // what it does now, its caller does not wait for
  bool cancelled = false;
  bool finished = false;
  std::exception_ptr error;
};

/// A thread that runs one task at a time and only while it holds the baton.
/// States of the paper: no task = IDLE, suspended = PENDING, else EXECUTING.
/// The baton goes to the server thread by releasing its semaphore, to another
/// worker by pass(); each hand-over is a context switch.
/// Source: Karakus et al. 2021, section 4.3 and appendix B.
class Worker {
 public:
  /// Runs on the worker when it has finished a task: the next task for it, or
  /// nullptr when the baton has been handed on.
  using After = std::function<std::shared_ptr<Task>(std::shared_ptr<Task>)>;

  Worker(std::binary_semaphore& server_turn, After after);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Server thread: hands the baton over and waits until it comes back, from
  /// this worker or another.
  void give(std::shared_ptr<Task> task);

  /// Any thread with the baton: hands it over. The worker may be the caller's
  /// own, which then goes on as soon as it suspends itself.
  void pass(std::shared_ptr<Task> task);

  /// Worker thread: hands the baton on by calling `hand_over`, and waits until
  /// the task is given it again.
  /// Throws: StepCancelled when the step was given up meanwhile.
  void suspend(const std::function<void()>& hand_over);

  /// The worker of this thread, or nullptr on others.
  static Worker* current();
  const std::shared_ptr<Task>& task() const {
    return task_;
  }
  bool idle() const {
    return task_ == nullptr;
  }

 private:
  void loop();

  std::binary_semaphore& server_turn_;
  After after_;
  std::binary_semaphore worker_turn_{0};
  std::shared_ptr<Task> task_;
  bool stop_ = false;
  std::thread thread_;
};

} // namespace tessera::runtime
