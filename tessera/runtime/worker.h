#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tessera/runtime/handover.h"
#include "tessera/runtime/task.h"

namespace tessera::runtime {

/// A thread that runs one task at a time and only while it holds the baton. States of the paper: no
/// task = IDLE, suspended = PENDING, else EXECUTING. The baton passes to the server thread by
/// releasing its semaphore, to another worker by pass(); each time is a context switch.
/// Source: Karakus et al. 2021, section 4.3 and appendix B.
class Worker {
 public:
  /// Runs on the worker when it has finished a task. Returns the next task for it, or nullptr when
  /// the baton has been passed.
  using After = std::function<std::shared_ptr<Task>(std::shared_ptr<Task>)>;

  Worker(Handover& server_turn, After after);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Server thread: passes the baton and waits until it comes back, from this worker or another.
  void give(std::shared_ptr<Task> task);

  /// Any thread with the baton: passes it. The worker may be the caller's own, which then goes on
  /// as soon as it suspends itself.
  void pass(std::shared_ptr<Task> task);

  /// Worker thread: passes the baton by calling `hand_over`, and waits until the task gets it
  /// again.
  /// Throws: StepCancelled when the step was aborted meanwhile.
  void suspend(const std::function<void()>& hand_over);

  /// Returns the worker of this thread, or nullptr on a thread that is none.
  static Worker* current();
  const std::shared_ptr<Task>& task() const {
    return task_;
  }
  bool idle() const {
    return task_ == nullptr;
  }

 private:
  void loop();

  Handover& server_turn_;
  After after_;
  Handover worker_turn_;
  std::shared_ptr<Task> task_;
  bool stop_ = false;
  std::thread thread_;
};

/// The workers of a server, made when all others hold a task, and the server thread's half of
/// handing the baton over.
/// Threads: whoever has the baton.
class WorkerPool {
 public:
  explicit WorkerPool(Worker::After after) : after_(std::move(after)) {}

  /// Returns a worker without a task.
  Worker& idle();
  /// Returns the caller's place among the workers, or 0 on another thread.
  int current_lane() const;
  /// Any worker: passes the baton to the server thread.
  void wake_server() {
    server_turn_.release();
  }

 private:
  Worker::After after_;
  Handover server_turn_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

} // namespace tessera::runtime
