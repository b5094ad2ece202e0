#pragma once

#include <cstdint>

#include "tessera/nn/layers/product.h"
#include "tessera/nn/layers/transformer_options.h"
#include "tessera/nn/module/module.h"
#include "tessera/nn/parallel/distributed_module.h"

namespace tessera::nn {

/// `groups` times `parts` times `width` features, of which every rank takes the
/// same parts of every group: queries, keys and values (groups) of some heads
/// (parts), or some of the inner features (one group of width 1).
struct FeatureSplit {
  std::int64_t groups = 1;
  std::int64_t parts = 0;
  std::int64_t width = 1;

  std::int64_t total() const {
    return groups * parts * width;
  }
  /// Features of each rank.
  Lengths lengths(int ranks) const;
};

/// A linear layer inside a distributed transformer, between activations in the
/// inside placement and features divided by a FeatureSplit. Two of them make a
/// block: kInto divides, kOutOf sums.
///
/// | | speed, own samples | speed, prescaled | memory |
/// | --- | --- | --- | --- |
/// | kInto | all-gather samples, W by rows | W by rows | W by columns,
/// reduce-scatter features | | kOutOf | W by columns, reduce-scatter samples |
/// W by columns, all-reduce | W by columns, reduce-scatter channels |
///
/// Shapes: kInto x_bSI -> y_BSo, kOutOf x_BSi -> y_bSO, where b, I or O become
/// B or i as the inside placement says.
/// Collective over the TP_GROUP. Threads: as torch::nn::Module.
/// Source: Karakus et al. 2021, appendices F.1 and F.2.
class DistributedProjectionImpl : public DistributedModule {
 public:
  enum class Direction { kInto, kOutOf };

  DistributedProjectionImpl(
      Direction direction,
      std::int64_t hidden,
      const FeatureSplit& split,
      const TransformerOptions& options);
  /// `samples`: batch sizes of all ranks, where they have their own.
  at::Tensor forward(const at::Tensor& x, const Lengths& samples);

  at::Tensor weight;
  at::Tensor bias;

 private:
  Shard weight_shard() const;

  Direction direction_;
  std::int64_t hidden_;
  FeatureSplit split_;
};
TORCH_MODULE(DistributedProjection);

} // namespace tessera::nn
