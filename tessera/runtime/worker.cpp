#include "tessera/runtime/worker.h"

#include "tessera/base/error.h"

namespace tessera::runtime {

namespace {
thread_local Worker* t_worker = nullptr;
}

Worker::Worker() : thread_([this] { loop(); }) {}

Worker::~Worker() {
  stop_ = true;
  worker_turn_.release();
  thread_.join();
}

Worker* Worker::current() {
  return t_worker;
}

void Worker::give(std::shared_ptr<Task> task) {
  TESSERA_CHECK(task_ == nullptr || task_ == task);
  task_ = std::move(task);
  worker_turn_.release();
  server_turn_.acquire();
  if (task_->finished) {
    task_ = nullptr;
  }
}

void Worker::suspend() {
  Task& task = *task_;
  task.random = RandomState::capture();
  task.waiting = true;
  server_turn_.release();
  worker_turn_.acquire();
  task.waiting = false;
  if (task.cancelled) {
    throw StepCancelled();
  }
  task.random.restore();
}

void Worker::loop() {
  t_worker = this;
  for (;;) {
    worker_turn_.acquire();
    if (stop_) {
      return;
    }
    Task& task = *task_;
    try {
      task.random.restore();
      task.run();
    } catch (...) {
      task.error = std::current_exception();
    }
    task.run =
        nullptr; // what it holds is freed while this thread has the baton
    task.finished = true;
    server_turn_.release();
  }
}

} // namespace tessera::runtime
