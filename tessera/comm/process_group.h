#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/collective.h"

namespace tessera::comm {

class SharedMemory;

/// A collective in flight. It keeps its tensors alive.
/// Threads: any thread.
class Work {
 public:
  virtual ~Work() = default;
  /// Blocks until the collective is done, without occupying the core.
  /// Throws: CommError naming group, operation and the ranks that are missing
  /// when the group's timeout passes or a peer fails.
  virtual void wait() = 0;
  virtual bool done() = 0;
};
using WorkPtr = std::shared_ptr<Work>;

/// Bytes that left this rank through a group since the last reset, counted by
/// the closed formulas of docs/algorithms.md (payload, without headers).
struct Traffic {
  std::atomic<std::int64_t> calls{0};
  std::atomic<std::int64_t> bytes{0};
};

/// An ordered set of ranks that runs collectives. Tensors are contiguous and of
/// equal shape and dtype on all ranks unless said otherwise; dtypes f32, f64,
/// f16, bf16, i32, i64, u8. Every call on a group of one is a no-op or a copy.
/// Every `_async` form returns at once; operations of one group run in the
/// order in which they were started, which must be the same on all its ranks.
/// Throws: ShapeError for a tensor that cannot take part, before anything is
/// sent; CommError for a root outside of the group.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  const std::string& name() const {
    return info_.name;
  }
  /// Returns the global ranks of the members, ascending.
  const std::vector<int>& ranks() const {
    return info_.ranks;
  }
  int rank() const {
    return info_.rank;
  }
  int size() const {
    return info_.size();
  }
  const GroupInfo& info() const {
    return info_;
  }
  Traffic& traffic() {
    return traffic_;
  }

  /// Reduces in place. Collective over this group.
  WorkPtr all_reduce_async(at::Tensor tensor, ReduceOp op);
  /// Sums in place and multiplies by `scale`; the product is rounded once. Tensors are
  /// floating-point.
  /// Collective over this group.
  WorkPtr scaled_sum_async(at::Tensor tensor, double scale);
  /// Sets output to the inputs of rank 0, 1, ... one after the other; output has size() times the
  /// elements of input. Collective over this group.
  WorkPtr all_gather_async(at::Tensor output, at::Tensor input);
  /// Sets output to this rank's slice (1 / size() of the elements) of the reduced input. Collective
  /// over this group.
  WorkPtr reduce_scatter_async(at::Tensor output, at::Tensor input, ReduceOp op);
  /// Sends slice i of input to rank i; slice j of output came from rank j. Slices are equally long.
  /// Collective over this group.
  WorkPtr all_to_all_async(at::Tensor output, at::Tensor input);
  /// Copies the tensor of `root`, a rank in the group, to all in place. Collective over this group.
  WorkPtr broadcast_async(at::Tensor tensor, int root);
  /// The result is valid on root; other ranks' tensors are left as they were.
  WorkPtr reduce_async(at::Tensor tensor, int root, ReduceOp op);
  /// Collective over this group.
  WorkPtr barrier_async();

  // The blocking forms. A back end may run them on the calling thread when
  // nothing is queued before them.
  void all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::kSum);
  void all_gather(at::Tensor output, at::Tensor input);
  void reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op = ReduceOp::kSum);
  void all_to_all(at::Tensor output, at::Tensor input);
  void broadcast(at::Tensor tensor, int root);
  void reduce(at::Tensor tensor, int root, ReduceOp op = ReduceOp::kSum);
  void barrier();

  /// Reports that this rank's own code has failed between two collectives, so that peers which have
  /// gone on into the next one do not wait for it.
  ///
  /// Every collective carries its rank's count of failures at launch. Where the
  /// counts of ranks differ the group is *broken*: every operation throws
  /// PeerFailed, on all ranks and within a fraction of a second, until all have
  /// called `recover`. Ranks that all fail between the same two collectives
  /// break nothing, and may go on.
  /// `why` names rank and cause. Not collective. Threads: any thread.
  virtual void abandon(const std::string& why) = 0;
  /// Brings all ranks to one point again, whatever each of them left undone, and clears their
  /// failures. Waits for what runs on the group's thread.
  /// Collective over the group, after the ranks have agreed that a step failed.
  /// Throws: CommError when the group has failed for good, or a rank does not
  /// come within the group's timeout.
  virtual void recover() = 0;

  /// Returns the group's capability to share memory; nullptr where its ranks cannot map each
  /// other's memory, and in a group of one. Lives as long as the group.
  virtual SharedMemory* shared_memory() {
    return nullptr;
  }

 protected:
  /// A checked collective with the tensors that hold its memory.
  struct Call {
    Operation operation;
    at::Tensor output;
    at::Tensor input; // equals output for the in-place operations
  };

  /// `device` is where the tensors of this group's collectives lie.
  explicit ProcessGroup(GroupInfo info, c10::DeviceType device = c10::DeviceType::CPU)
      : info_(std::move(info)), device_(device) {}

  virtual WorkPtr start(Call call) = 0;
  virtual void run(Call call) {
    start(std::move(call))->wait();
  }

 private:
  Call make_call(
      Collective kind,
      const at::Tensor& output,
      const at::Tensor& input,
      std::int64_t count) const;
  Call in_place(Collective kind, const at::Tensor& tensor) const;
  Call sliced(Collective kind, const at::Tensor& output, const at::Tensor& input) const;
  Call scaled_sum(const at::Tensor& tensor, double scale) const;
  Call rooted(Call call, int root) const;
  void check_tensor(const at::Tensor& tensor, Collective kind) const;
  WorkPtr counted_start(Call call);
  void counted_run(Call call);
  void count(const Call& call);

  GroupInfo info_;
  c10::DeviceType device_;
  Traffic traffic_;
};
using ProcessGroupPtr = std::shared_ptr<ProcessGroup>;

} // namespace tessera::comm
