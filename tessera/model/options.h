#pragma once

#include <string>

namespace tessera {

/// How a model is wrapped. Names and defaults follow the library's documentation of
/// `DistributedModel`.
struct ModelOptions {
  /// Gradients travel while the backward runs, not at the end of the step.
  bool overlapping_allreduce = true;
  /// Steps whose gradients add up before data-parallel ranks average them.
  int backward_passes_per_step = 1;
  /// Divide gradients by the number of microbatches; false: their sum.
  bool average_grads_across_microbatches = true;
  /// Units: MiB.
  double bucket_cap_mb = 25;
  /// Training steps begin with the buffers of the first data-parallel rank.
  bool broadcast_buffers = true;
  /// Tells the models of a process apart in messages and timelines; empty: the name of the class.
  std::string name = {};
};

} // namespace tessera
