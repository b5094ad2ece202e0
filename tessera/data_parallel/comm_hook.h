#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/process_group.h"

namespace tessera::data_parallel {

/// Gradients that are ready to be averaged.
struct GradientBucket {
  /// Those of this rank, one after the other, multiplied by its weight (replica_samples); in their
  /// place the hook writes the averages (`bucket.buffer.copy_(...)`).
  const at::Tensor buffer;
  /// Names of their parameters, in this order, and how many elements each has.
  std::vector<std::string> parameters;
  std::vector<std::int64_t> elements;
  /// The ranks whose gradients are averaged.
  comm::ProcessGroup& group;
  /// What the ranks' sum is multiplied by for the average. Not always one over the group's size:
  /// gradients of parameters that a TP_GROUP divides are sums over it already.
  double scale;
  /// Which bucket of this step, and whether it is the last one. Later additions to parameters of a
  /// bucket that has left come as a bucket of the same number.
  int index;
  bool last;
};

/// What a script does in the place of the all-reduce of a bucket. Returns a collective to wait for
/// at the end of the step, or nullptr when the averages are there. It runs during the backward, on
/// every rank of the group for the same buckets in one order. With a pipeline or tensor parallelism
/// a hook that waits for other ranks itself needs replicas that take the same branches: a bucket of
/// a layer that one leaves out comes at the end of its step, for which the backward of others,
/// which wait, cannot let it go on.
using CommHook = std::function<comm::WorkPtr(GradientBucket& bucket)>;

} // namespace tessera::data_parallel
