#pragma once

#include <cstdint>

#include "tessera/nn/layers/distributed_product.h"
#include "tessera/nn/layers/transformer_options.h"
#include "tessera/nn/module/module.h"
#include "tessera/nn/parallel/distributed_module.h"
#include "tessera/nn/summa/first_row.h"
#include "tessera/nn/summa/functional.h"

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
  /// Features of one group on each rank, or column of a mesh; the last ones may
  /// have none.
  Blocks blocks(int ranks) const;
};

/// A linear layer inside a distributed transformer, between activations in the
/// inside placement and features divided by a FeatureSplit. Two of them make a
/// block: kInto is column parallel (every rank computes some of the features),
/// kOutOf row parallel (every rank has some of the features and computes a part
/// of the sum). On a mesh both are products of blocks.
///
// clang-format off
/// | placement inside   | kInto (column parallel)                         | kOutOf (row parallel)                         |
/// | ------------------ | ----------------------------------------------- | --------------------------------------------- |
/// | speed, own samples | all-gather of samples, W by rows                | W by columns, reduce-scatter of samples       |
/// | speed, prescaled   | W by rows                                       | W by columns, all-reduce                      |
/// | memory             | W by columns, reduce-scatter of features        | W by columns, reduce-scatter of channels      |
/// | 2d                 | SUMMA, W in q x r blocks                        | SUMMA, W in q x r blocks                      |
// clang-format on
/// (W [out, in] as torch stores it: rows are the features that come out.)
///
/// Shapes: kInto x_bSI -> y_BSo, kOutOf x_BSi -> y_bSO, where b, I or O become
/// B, B/q or i as the inside placement says.
/// Collective over the TP_GROUP. Threads: as torch::nn::Module.
/// Source: Shoeybi et al. 2019, section 3; Karakus et al. 2021, appendices F.1
/// and F.2; Xu et al. 2021, section 3.2.1.
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

  /// Of a projection on a mesh.
  summa::LinearLayout layout_on_mesh() const;

  at::Tensor weight;
  /// Undefined without one; on a mesh a placeholder but on its first row.
  at::Tensor bias;

 private:
  Shard weight_shard() const;
  ProductPlan product_plan(const TensorParallel& parallel, const Lengths& rows) const;

  Direction direction_;
  std::int64_t hidden_;
  FeatureSplit split_;
  summa::FirstRowVectors first_row_;
};
TORCH_MODULE(DistributedProjection);

} // namespace tessera::nn
