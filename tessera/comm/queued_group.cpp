#include "tessera/comm/queued_group.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/peer_failed.h"
#include "tessera/comm/reduce_kernels.h"
#include "tessera/comm/shared_memory/window.h"
#include "tessera/diagnostics/activity.h"

namespace tessera::comm {

namespace {

namespace activity = diagnostics::activity;

/// After a failure MPI may still read and write the memory of an operation, so this memory is never
/// freed. It is that of one operation of a group that has failed for good.
template <typename Call>
void keep_for_ever(std::vector<Call> calls) {
  static std::mutex mutex;
  static auto* kept = new std::vector<Call>(); // outlives static objects
  const std::lock_guard lock(mutex);
  kept->insert(kept->end(), calls.begin(), calls.end());
}

/// A group of one: a copy, or a product with the operation's scale.
void run_alone(const Operation& operation) {
  if (operation.scale != 1) {
    reduce(
        operation.type,
        operation.reduce,
        operation.output,
        &operation.input,
        1,
        operation.count,
        operation.scale);
  } else if (operation.output != operation.input && operation.count > 0) {
    std::memmove(operation.output, operation.input, operation.bytes(operation.count));
  }
}

} // namespace

class QueuedGroup::Task : public Work {
 public:
  explicit Task(Call call) : call_(std::move(call)) {}

  void wait() override {
    state_.wait(kPending, std::memory_order_acquire);
    if (error_) {
      std::rethrow_exception(error_);
    }
  }
  bool done() override {
    return state_.load(std::memory_order_acquire) != kPending;
  }

  const Call& call() const {
    return call_;
  }
  /// `error` is null after success.
  void finish(std::exception_ptr error) {
    error_ = std::move(error);
    call_ = Call();
    state_.store(kDone, std::memory_order_release);
    state_.notify_all();
  }

 private:
  enum State : int { kPending, kDone };
  Call call_;
  std::exception_ptr error_; // written before state_ says so
  std::atomic<int> state_{kPending};
};

QueuedGroup::QueuedGroup(const GroupInfo& info, std::unique_ptr<Engine> engine)
    : ProcessGroup(info), engine_(std::move(engine)) {
  TESSERA_CHECK((engine_ == nullptr) == (info.size() == 1), info.text());
}

QueuedGroup::~QueuedGroup() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (std::uncaught_exceptions() > 0 && engine_ != nullptr) {
      // Peers may never come, so the destructor does not hold up the error until the timeout.
      engine_->cancel();
    }
  }
  wake_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
  keep_for_ever(std::move(abandoned_));
}

WorkPtr QueuedGroup::start(Call call) {
  auto task = std::make_shared<Task>(std::move(call));
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(task);
    ++started_;
    if (!thread_.joinable()) {
      thread_ = std::thread([this] { work(); });
    }
  }
  wake_.notify_all();
  return task;
}

void QueuedGroup::run(Call call) {
  bool inline_call = false;
  {
    const std::lock_guard lock(mutex_);
    inline_call = queue_.empty() && !executing_;
    executing_ = executing_ || inline_call;
    started_ += inline_call ? 1 : 0;
  }
  if (!inline_call) {
    start(std::move(call))->wait();
    return;
  }
  const std::exception_ptr error = try_to_execute(call);
  {
    const std::lock_guard lock(mutex_);
    executing_ = false;
  }
  wake_.notify_all();
  if (error) {
    std::rethrow_exception(error);
  }
}

std::exception_ptr QueuedGroup::try_to_execute(const Call& call) {
  try {
    execute(call);
  } catch (const Error&) {
    return std::current_exception();
  }
  return nullptr;
}

void QueuedGroup::execute(const Call& call) {
  throw_if_failed();
  if (engine_ == nullptr) {
    return run_alone(call.operation);
  }
  const activity::Operation shown(name_of(call.operation.kind), name());
  try {
    engine_->run(call.operation);
  } catch (const PeerFailed&) {
    if (!engine_->shares_memory()) {
      abandoned_.push_back(call);
    }
    throw; // the group can go on once all have recovered
  } catch (const std::exception& e) {
    // The activity of the other ranks says which one is at fault; it may be in another group.
    error_ = e.what() + activity::of_node();
    activity::leave(); // this error reports this rank's end
    abandoned_.push_back(call);
    throw CommError(error_);
  }
}

void QueuedGroup::throw_if_failed() const {
  if (!error_.empty()) {
    throw CommError(tessera::str(info().text(), " has failed before and stays unusable: ", error_));
  }
}

void QueuedGroup::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return !executing_ && (stopping_ || !queue_.empty()); });
    if (queue_.empty()) {
      return; // stopping
    }
    const std::shared_ptr<Task> task = queue_.front();
    executing_ = true;
    lock.unlock();
    const std::exception_ptr error = try_to_execute(task->call());
    lock.lock();
    // The task leaves the queue only now, since a blocking call must not overtake it.
    queue_.pop_front();
    executing_ = false;
    lock.unlock();
    wake_.notify_all();
    task->finish(error);
    lock.lock();
  }
}

void QueuedGroup::abandon(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (engine_ != nullptr) {
    engine_->abandon(started_, why);
  }
}

void QueuedGroup::recover() {
  std::unique_lock lock(mutex_);
  // Every operation that the failed step has queued ends, with its result or as PeerFailed.
  wake_.wait(lock, [this] { return queue_.empty() && !executing_; });
  throw_if_failed();
  if (engine_ == nullptr) {
    return;
  }
  executing_ = true;
  lock.unlock();
  std::exception_ptr error;
  std::uint32_t started = 0;
  try {
    started = engine_->recover();
    abandoned_.clear();
  } catch (const Error& e) {
    error_ = e.what();
    error = std::current_exception();
  }
  lock.lock();
  executing_ = false;
  started_ = started;
  lock.unlock();
  wake_.notify_all();
  if (error) {
    std::rethrow_exception(error);
  }
}

SharedMemory* QueuedGroup::shared_memory() {
  return engine_ != nullptr && engine_->shares_memory() ? this : nullptr;
}

std::shared_ptr<Window> QueuedGroup::make_window(std::size_t bytes_of_rank) {
  return Window::make(*this, bytes_of_rank);
}

} // namespace tessera::comm
