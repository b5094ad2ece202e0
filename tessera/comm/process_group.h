#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/collective.h"

namespace tessera::comm {

namespace shm {
class Window;
}

/// A collective in flight. Keeps its tensors alive.
/// Threads: any thread.
class Work {
 public:
  virtual ~Work() = default;
  /// Blocks until done without burning the core.
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
class ProcessGroup {
 public:
  ProcessGroup(std::string name, std::vector<int> ranks, int rank_in_group)
      : name_(std::move(name)), ranks_(std::move(ranks)), rank_(rank_in_group) {}
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  const std::string& name() const {
    return name_;
  }
  /// Global ranks of the members, ascending.
  const std::vector<int>& ranks() const {
    return ranks_;
  }
  int rank() const {
    return rank_;
  }
  int size() const {
    return static_cast<int>(ranks_.size());
  }
  Traffic& traffic() {
    return traffic_;
  }

  /// In place. Collective over this group.
  virtual WorkPtr all_reduce_async(at::Tensor tensor, ReduceOp op) = 0;
  /// The sum times `scale`, rounded once. In place; floating-point tensors.
  /// Collective over this group.
  virtual WorkPtr scaled_sum_async(at::Tensor tensor, double scale) = 0;
  /// output = inputs of rank 0, 1, ... one after the other; output has
  /// size() times the elements of input. Collective over this group.
  virtual WorkPtr all_gather_async(at::Tensor output, at::Tensor input) = 0;
  /// output = this rank's slice (1 / size() of the elements) of the reduced
  /// input. Collective over this group.
  virtual WorkPtr reduce_scatter_async(at::Tensor output, at::Tensor input, ReduceOp op) = 0;
  /// Slice i of input goes to rank i; slice j of output came from rank j.
  /// Equal slices. Collective over this group.
  virtual WorkPtr all_to_all_async(at::Tensor output, at::Tensor input) = 0;
  /// `root` is a rank in the group. In place. Collective over this group.
  virtual WorkPtr broadcast_async(at::Tensor tensor, int root) = 0;
  /// The result is valid on root; other ranks' tensors are left as they were.
  virtual WorkPtr reduce_async(at::Tensor tensor, int root, ReduceOp op) = 0;
  /// Collective over this group.
  virtual WorkPtr barrier_async() = 0;

  // The blocking forms. A backend may run them on the calling thread when
  // nothing is queued before them.
  virtual void all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::kSum) {
    all_reduce_async(std::move(tensor), op)->wait();
  }
  virtual void all_gather(at::Tensor output, at::Tensor input) {
    all_gather_async(std::move(output), std::move(input))->wait();
  }
  virtual void reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op = ReduceOp::kSum) {
    reduce_scatter_async(std::move(output), std::move(input), op)->wait();
  }
  virtual void all_to_all(at::Tensor output, at::Tensor input) {
    all_to_all_async(std::move(output), std::move(input))->wait();
  }
  virtual void broadcast(at::Tensor tensor, int root) {
    broadcast_async(std::move(tensor), root)->wait();
  }
  virtual void reduce(at::Tensor tensor, int root, ReduceOp op = ReduceOp::kSum) {
    reduce_async(std::move(tensor), root, op)->wait();
  }
  virtual void barrier() {
    barrier_async()->wait();
  }

  /// Memory of each rank that the others read where it lies; nullptr where the
  /// group's ranks do not share memory, and in a group of one. Address space is
  /// reserved, pages are given when first written.
  /// Collective over this group. Throws: CommError when it cannot be mapped.
  virtual std::shared_ptr<shm::Window> make_window(std::size_t bytes_of_rank) {
    static_cast<void>(bytes_of_rank);
    return nullptr;
  }

 private:
  std::string name_;
  std::vector<int> ranks_;
  int rank_;
  Traffic traffic_;
};
using ProcessGroupPtr = std::shared_ptr<ProcessGroup>;

} // namespace tessera::comm
