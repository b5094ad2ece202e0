#pragma once

#include <string>

#include "tessera/comm/process_group.h"

namespace tessera::autotune {

/// The first rank of a group whose other ranks do not exist: enough to shape
/// the part of a distributed model that a rank would hold. Its collectives
/// throw InternalError. Threads: any.
class LoneGroup : public comm::ProcessGroup {
 public:
  explicit LoneGroup(int size);

  comm::WorkPtr all_reduce_async(at::Tensor tensor, comm::ReduceOp op) override;
  comm::WorkPtr scaled_sum_async(at::Tensor tensor, double scale) override;
  comm::WorkPtr all_gather_async(at::Tensor output, at::Tensor input) override;
  comm::WorkPtr reduce_scatter_async(at::Tensor output, at::Tensor input, comm::ReduceOp op)
      override;
  comm::WorkPtr all_to_all_async(at::Tensor output, at::Tensor input) override;
  comm::WorkPtr broadcast_async(at::Tensor tensor, int root) override;
  comm::WorkPtr reduce_async(at::Tensor tensor, int root, comm::ReduceOp op) override;
  comm::WorkPtr barrier_async() override;
};

} // namespace tessera::autotune
