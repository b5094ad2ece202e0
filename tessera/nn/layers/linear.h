#pragma once

#include <cstdint>

#include "tessera/nn/module/module.h"
#include "tessera/nn/parallel/distributed_module.h"

namespace tessera::nn {

struct DistributedLinearOptions {
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  bool bias = true;
};

/// torch::nn::Linear with the weight divided along its input; the bias lives on
/// tp rank 0. Every rank's samples are cut along their features, rank i gets
/// slice i of everybody's, and the partial results of a rank's samples are
/// summed where they came from. With a prescaled batch no sample has to move:
/// every rank multiplies its slice and the results are all-reduced.
///
/// Shapes: x_...I -> y_...O, weight_Oi, i = even_range(I, tp, rank).
/// Initialisation: torch::nn::Linear's.
/// Collective over the TP_GROUP. Threads: as torch::nn::Module.
/// Cost for b rows a rank: forward, all-to-all of b I / tp a slice and
/// reduce-scatter of b O; backward, all-gather of b O and the all-to-all back.
/// Throws: ShapeError when the last dimension of x is not in_features.
/// Source: Karakus et al. 2021, Figure 6.
class DistributedLinearImpl : public DistributedModule {
 public:
  explicit DistributedLinearImpl(const DistributedLinearOptions& options);
  DistributedLinearImpl(std::int64_t in_features, std::int64_t out_features);
  at::Tensor forward(const at::Tensor& x);

  DistributedLinearOptions options;
  at::Tensor weight;
  at::Tensor bias; // undefined on every rank but tp rank 0
};
TESSERA_MODULE(DistributedLinear);

} // namespace tessera::nn
