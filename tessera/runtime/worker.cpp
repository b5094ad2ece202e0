#include "tessera/runtime/worker.h"

#include <utility>

#include <ATen/Parallel.h>

#include <pthread.h>

#include "tessera/base/error.h"

namespace tessera::runtime {

namespace {
thread_local Worker* t_worker = nullptr;
}

Worker::Worker(Handover& server_turn, After after)
    : server_turn_(server_turn), after_(std::move(after)), thread_([this] { loop(); }) {}

Worker::~Worker() {
  stop_ = true;
  worker_turn_.release();
  thread_.join();
}

Worker* Worker::current() {
  return t_worker;
}

void Worker::give(std::shared_ptr<Task> task) {
  pass(std::move(task));
  server_turn_.acquire();
}

void Worker::pass(std::shared_ptr<Task> task) {
  TESSERA_CHECK(task_ == nullptr || task_ == task);
  task_ = std::move(task);
  worker_turn_.release();
}

void Worker::suspend(const std::function<void()>& hand_over) {
  Task& task = *task_;
  if (task.random) {
    task.random = RandomState::capture();
  }
  hand_over();
  worker_turn_.acquire();
  if (task.cancelled) {
    throw StepCancelled();
  }
  if (task.random) {
    task.random->restore();
  }
}

void Worker::loop() {
  t_worker = this;
  ::pthread_setname_np(::pthread_self(), "tessera-worker");
  // The thread count that the script set; without this a product that is a
  // worker's first work would start a BLAS thread on every core.
  at::init_num_threads();
  for (;;) {
    worker_turn_.acquire();
    if (stop_) {
      return;
    }
    while (task_ != nullptr) {
      Task& task = *task_;
      try {
        if (task.random) {
          task.random->restore();
        }
        task.run();
      } catch (...) {
        task.error = std::current_exception();
      }
      // What it holds is freed while this thread has the baton.
      task.run = nullptr;
      task.finished = true;
      auto next = after_(std::exchange(task_, nullptr));
      if (next == nullptr) {
        break; // the baton is gone, and task_ may be another's to set
      }
      task_ = std::move(next);
    }
  }
}

Worker& WorkerPool::idle() {
  for (const auto& worker : workers_) {
    if (worker->idle()) {
      return *worker;
    }
  }
  workers_.push_back(std::make_unique<Worker>(server_turn_, after_));
  return *workers_.back();
}

int WorkerPool::current_lane() const {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].get() == Worker::current()) {
      return static_cast<int>(i);
    }
  }
  return 0;
}

} // namespace tessera::runtime
