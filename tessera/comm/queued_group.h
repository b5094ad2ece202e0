#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tessera/comm/collective.h"
#include "tessera/comm/process_group.h"
#include "tessera/comm/recoverable.h"

namespace tessera::comm {

/// A process group over an engine: checks tensors, counts traffic, and runs
/// asynchronous operations in order on one thread, made at the first of them.
/// A blocking call with nothing before it runs on its caller.
///
/// After an error the group stays failed: everything queued and everything
/// later throws, naming the first error; a PeerFailed is none of that kind and
/// passes with `recover`. Destruction finishes what is queued,
/// or drops it when an exception is on its way.
/// Collective, as its base. Threads: any thread.
class QueuedGroup final : public ProcessGroup, public Recoverable {
 public:
  /// `engine` may be null for a group of one.
  QueuedGroup(const GroupInfo& info, std::unique_ptr<Engine> engine);
  ~QueuedGroup() override;

  WorkPtr all_reduce_async(at::Tensor tensor, ReduceOp op) override;
  WorkPtr scaled_sum_async(at::Tensor tensor, double scale) override;
  WorkPtr all_gather_async(at::Tensor output, at::Tensor input) override;
  WorkPtr reduce_scatter_async(at::Tensor output, at::Tensor input, ReduceOp op) override;
  WorkPtr all_to_all_async(at::Tensor output, at::Tensor input) override;
  WorkPtr broadcast_async(at::Tensor tensor, int root) override;
  WorkPtr reduce_async(at::Tensor tensor, int root, ReduceOp op) override;
  WorkPtr barrier_async() override;

  void all_reduce(at::Tensor tensor, ReduceOp op) override;
  void all_gather(at::Tensor output, at::Tensor input) override;
  void reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override;
  void all_to_all(at::Tensor output, at::Tensor input) override;
  void broadcast(at::Tensor tensor, int root) override;
  void reduce(at::Tensor tensor, int root, ReduceOp op) override;
  void barrier() override;

  std::shared_ptr<shm::Window> make_window(std::size_t bytes_of_rank) override;

  void abandon(const std::string& why) override;
  void recover() override;

 private:
  struct Job {
    Operation operation;
    at::Tensor output; // kept alive
    at::Tensor input;
  };
  class Task;

  Job in_place_job(Collective kind, const at::Tensor& tensor) const;
  Job sliced_job(Collective kind, const at::Tensor& output, const at::Tensor& input) const;
  Job reducing(Job job, ReduceOp op) const;
  Job rooted(Job job, int root) const;

  void count_traffic(const Job& job);
  WorkPtr start(Job job);
  void run(Job job);
  void execute(const Job& job);
  void work();

  GroupInfo info_;
  std::unique_ptr<Engine> engine_;
  RecoverableEngine* recoverable_; // engine_, where it is one

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Task>> queue_; // guarded by mutex_
  bool executing_ = false; // guarded by mutex_
  bool stopping_ = false; // guarded by mutex_
  std::uint32_t started_ = 0; // operations; guarded by mutex_
  std::string error_; // used by whoever executes
  std::thread thread_; // guarded by mutex_
};

} // namespace tessera::comm
