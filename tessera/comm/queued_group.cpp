#include "tessera/comm/queued_group.h"

#include <atomic>
#include <cstring>
#include <exception>
#include <utility>

#include <ATen/core/Tensor.h>

#include "tessera/base/error.h"
#include "tessera/comm/activity.h"
#include "tessera/comm/reduce_kernels.h"
#include "tessera/comm/shared_memory/window.h"

namespace tessera::comm {

namespace {

DataType data_type_of(const at::Tensor& tensor, Collective kind, const GroupInfo& info) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DataType::kF32;
    case at::kDouble:
      return DataType::kF64;
    case at::kHalf:
      return DataType::kF16;
    case at::kBFloat16:
      return DataType::kBF16;
    case at::kInt:
      return DataType::kI32;
    case at::kLong:
      return DataType::kI64;
    case at::kByte:
      return DataType::kU8;
    default:
      throw ShapeError(tessera::str(
          name_of(kind),
          " in ",
          info.text(),
          ": dtype ",
          tensor.scalar_type(),
          " is not supported; use f32, f64, f16, bf16, i32, i64 or u8"));
  }
}

/// After a failure MPI may still read and write the memory of the operation, so
/// it is never given back. One operation of a group can come here, and one for
/// each failed step that it recovers from.
void keep_for_ever(at::Tensor output, at::Tensor input) {
  static std::mutex mutex;
  static auto* kept = new std::vector<at::Tensor>(); // outlives static objects
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(output));
  kept->push_back(std::move(input));
}

void check_tensor(const at::Tensor& tensor, Collective kind, const GroupInfo& info) {
  const auto where = [&] { return tessera::str(name_of(kind), " in ", info.text()); };
  if (!tensor.defined()) {
    throw ShapeError(where() + ": the tensor is undefined");
  }
  if (!tensor.device().is_cpu()) {
    throw ShapeError(tessera::str(
        where(), ": the tensor is on ", tensor.device().str(), "; this group moves CPU tensors"));
  }
  if (!tensor.is_contiguous()) {
    throw ShapeError(tessera::str(
        where(),
        ": a tensor of sizes ",
        tensor.sizes(),
        " and strides ",
        tensor.strides(),
        " is not contiguous; pass tensor.contiguous()"));
  }
}

} // namespace

class QueuedGroup::Task : public Work {
 public:
  explicit Task(Job job) : job_(std::move(job)) {}

  void wait() override {
    state_.wait(kPending, std::memory_order_acquire);
    if (state_.load(std::memory_order_acquire) == kFailed) {
      std::rethrow_exception(error_);
    }
  }
  bool done() override {
    return state_.load(std::memory_order_acquire) != kPending;
  }

  const Job& job() const {
    return job_;
  }
  void finish() {
    set(kDone);
  }
  void fail(std::exception_ptr error) {
    error_ = std::move(error);
    set(kFailed);
  }

 private:
  enum State : int { kPending, kDone, kFailed };
  void set(State state) {
    job_.output = at::Tensor();
    job_.input = at::Tensor();
    state_.store(state, std::memory_order_release);
    state_.notify_all();
  }

  Job job_;
  std::exception_ptr error_; // written before state_ says so
  std::atomic<int> state_{kPending};
};

QueuedGroup::QueuedGroup(const GroupInfo& info, std::unique_ptr<Engine> engine)
    : ProcessGroup(info.name, info.ranks, info.rank),
      info_(info),
      engine_(std::move(engine)),
      recoverable_(dynamic_cast<RecoverableEngine*>(engine_.get())) {
  TESSERA_CHECK(engine_ != nullptr || info_.size() == 1, info_.text());
}

QueuedGroup::~QueuedGroup() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (std::uncaught_exceptions() > 0 && engine_ != nullptr) {
      // Peers may never come; do not hold up the error until the timeout.
      engine_->cancel();
    }
  }
  wake_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

QueuedGroup::Job QueuedGroup::in_place_job(Collective kind, const at::Tensor& tensor) const {
  check_tensor(tensor, kind, info_);
  Job job;
  job.operation.kind = kind;
  job.operation.type = data_type_of(tensor, kind, info_);
  job.operation.input = tensor.data_ptr();
  job.operation.output = tensor.data_ptr();
  job.operation.count = tensor.numel();
  job.output = tensor;
  return job;
}

QueuedGroup::Job
QueuedGroup::sliced_job(Collective kind, const at::Tensor& output, const at::Tensor& input) const {
  check_tensor(output, kind, info_);
  check_tensor(input, kind, info_);
  const std::int64_t out_slices = kind == Collective::kReduceScatter ? 1 : size();
  const std::int64_t in_slices = kind == Collective::kAllGather ? 1 : size();
  if (output.scalar_type() != input.scalar_type()) {
    throw ShapeError(tessera::str(
        name_of(kind),
        " in ",
        info_.text(),
        ": the output is ",
        output.scalar_type(),
        ", the input ",
        input.scalar_type(),
        "; give both one dtype"));
  }
  const bool divides = input.numel() % in_slices == 0;
  if (!divides || output.numel() != input.numel() / in_slices * out_slices) {
    throw ShapeError(tessera::str(
        name_of(kind),
        " in ",
        info_.text(),
        ": an input of ",
        input.numel(),
        " elements does not fit an output of ",
        output.numel(),
        "; expected ",
        in_slices,
        " slice(s) in and ",
        out_slices,
        " slice(s) out"));
  }
  Job job;
  job.operation.kind = kind;
  job.operation.type = data_type_of(input, kind, info_);
  job.operation.input = input.data_ptr();
  job.operation.output = output.data_ptr();
  job.operation.count = input.numel() / in_slices;
  job.output = output;
  job.input = input;
  return job;
}

QueuedGroup::Job QueuedGroup::reducing(Job job, ReduceOp op) const {
  job.operation.reduce = op;
  return job;
}

QueuedGroup::Job QueuedGroup::rooted(Job job, int root) const {
  if (root < 0 || root >= size()) {
    throw CommError(tessera::str(
        name_of(job.operation.kind),
        " in ",
        info_.text(),
        ": root ",
        root,
        " is not a rank of the group; expected 0 to ",
        size() - 1));
  }
  job.operation.root = root;
  return job;
}

void QueuedGroup::count_traffic(const Job& job) {
  traffic().calls.fetch_add(1, std::memory_order_relaxed);
  traffic().bytes.fetch_add(
      traffic_bytes(job.operation, size(), rank()), std::memory_order_relaxed);
}

WorkPtr QueuedGroup::start(Job job) {
  count_traffic(job);
  auto task = std::make_shared<Task>(std::move(job));
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

void QueuedGroup::run(Job job) {
  bool inline_call = false;
  {
    const std::lock_guard lock(mutex_);
    inline_call = queue_.empty() && !executing_;
    executing_ = executing_ || inline_call;
    started_ += inline_call ? 1 : 0;
  }
  if (!inline_call) {
    start(std::move(job))->wait();
    return;
  }
  count_traffic(job);
  std::exception_ptr error;
  try {
    execute(job);
  } catch (const Error&) {
    error = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    executing_ = false;
  }
  wake_.notify_all();
  if (error) {
    std::rethrow_exception(error);
  }
}

void QueuedGroup::execute(const Job& job) {
  const Operation& operation = job.operation;
  if (!error_.empty()) {
    throw CommError(tessera::str(info_.text(), " has failed before and stays unusable: ", error_));
  }
  if (size() == 1) {
    const auto bytes = static_cast<std::size_t>(operation.count) * size_of(operation.type);
    if (operation.scale != 1) {
      comm::reduce(
          operation.type,
          operation.reduce,
          operation.output,
          &operation.input,
          1,
          operation.count,
          operation.scale);
    } else if (operation.output != operation.input && bytes > 0) {
      std::memmove(operation.output, operation.input, bytes);
    }
    return;
  }
  const activity::Operation shown(name_of(operation.kind), info_.name);
  try {
    engine_->run(operation);
  } catch (const PeerFailed&) {
    if (!engine_->shares_memory()) {
      keep_for_ever(job.output, job.input);
    }
    throw; // the group can go on once all have recovered
  } catch (const std::exception& e) {
    // What the others do tells who is at fault, who may be in another group.
    error_ = e.what() + activity::of_node();
    activity::leave(); // this error tells of this rank's end
    keep_for_ever(job.output, job.input);
    throw CommError(error_);
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
    std::exception_ptr error;
    try {
      execute(task->job());
    } catch (const Error&) {
      error = std::current_exception();
    }
    lock.lock();
    // Removed only now: a blocking call must not overtake it.
    queue_.pop_front();
    executing_ = false;
    lock.unlock();
    wake_.notify_all();
    if (error) {
      task->fail(error);
    } else {
      task->finish();
    }
    lock.lock();
  }
}

WorkPtr QueuedGroup::all_reduce_async(at::Tensor tensor, ReduceOp op) {
  return start(reducing(in_place_job(Collective::kAllReduce, tensor), op));
}

WorkPtr QueuedGroup::scaled_sum_async(at::Tensor tensor, double scale) {
  Job job = in_place_job(Collective::kAllReduce, tensor);
  if (!tensor.is_floating_point()) {
    throw ShapeError(tessera::str(
        info_.text(),
        ": a scaled sum of dtype ",
        tensor.scalar_type(),
        "; use f32, f64, f16 or bf16"));
  }
  job.operation.scale = scale;
  return start(std::move(job));
}

WorkPtr QueuedGroup::all_gather_async(at::Tensor output, at::Tensor input) {
  return start(sliced_job(Collective::kAllGather, output, input));
}

WorkPtr QueuedGroup::reduce_scatter_async(at::Tensor output, at::Tensor input, ReduceOp op) {
  return start(reducing(sliced_job(Collective::kReduceScatter, output, input), op));
}

WorkPtr QueuedGroup::all_to_all_async(at::Tensor output, at::Tensor input) {
  return start(sliced_job(Collective::kAllToAll, output, input));
}

WorkPtr QueuedGroup::broadcast_async(at::Tensor tensor, int root) {
  return start(rooted(in_place_job(Collective::kBroadcast, tensor), root));
}

WorkPtr QueuedGroup::reduce_async(at::Tensor tensor, int root, ReduceOp op) {
  return start(reducing(rooted(in_place_job(Collective::kReduce, tensor), root), op));
}

WorkPtr QueuedGroup::barrier_async() {
  return start(Job());
}

void QueuedGroup::all_reduce(at::Tensor tensor, ReduceOp op) {
  run(reducing(in_place_job(Collective::kAllReduce, tensor), op));
}

void QueuedGroup::all_gather(at::Tensor output, at::Tensor input) {
  run(sliced_job(Collective::kAllGather, output, input));
}

void QueuedGroup::reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) {
  run(reducing(sliced_job(Collective::kReduceScatter, output, input), op));
}

void QueuedGroup::all_to_all(at::Tensor output, at::Tensor input) {
  run(sliced_job(Collective::kAllToAll, output, input));
}

void QueuedGroup::broadcast(at::Tensor tensor, int root) {
  run(rooted(in_place_job(Collective::kBroadcast, tensor), root));
}

void QueuedGroup::reduce(at::Tensor tensor, int root, ReduceOp op) {
  run(reducing(rooted(in_place_job(Collective::kReduce, tensor), root), op));
}

void QueuedGroup::barrier() {
  run(Job());
}

void QueuedGroup::abandon(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (recoverable_ != nullptr) {
    recoverable_->abandon(started_, why);
  }
}

void QueuedGroup::recover() {
  std::unique_lock lock(mutex_);
  // What the failed step has queued ends: with its result, or as PeerFailed.
  wake_.wait(lock, [this] { return queue_.empty() && !executing_; });
  if (!error_.empty()) {
    throw CommError(tessera::str(info_.text(), " has failed before and stays unusable: ", error_));
  }
  if (recoverable_ == nullptr) {
    return;
  }
  executing_ = true;
  lock.unlock();
  std::exception_ptr error;
  std::uint32_t started = 0;
  try {
    started = recoverable_->recover();
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

std::shared_ptr<shm::Window> QueuedGroup::make_window(std::size_t bytes_of_rank) {
  if (engine_ == nullptr || !engine_->shares_memory()) {
    return nullptr;
  }
  return shm::Window::make(*this, info_, bytes_of_rank);
}

} // namespace tessera::comm
