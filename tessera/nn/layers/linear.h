#pragma once

#include <cstdint>

#include "tessera/nn/module/module.h"
#include "tessera/nn/parallel/distributed_module.h"
#include "tessera/nn/summa/first_row.h"
#include "tessera/nn/summa/functional.h"

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
/// every rank multiplies its slice and the results are all-reduced. On a mesh
/// the weight is in blocks and the product SUMMA's; two all-to-alls in the row
/// surround it.
///
/// Shapes: x_...I -> y_...O, weight_Oi, i = even_range(I, tp, rank).
/// Initialisation: torch::nn::Linear's.
/// Collective over the TP_GROUP. Threads: as torch::nn::Module.
/// Cost for b rows a rank: forward, all-to-all of b I / tp a slice and
/// reduce-scatter of b O; backward, all-gather of b O and the all-to-all back.
/// Throws: ShapeError when the last dimension of x is not in_features, or for
/// fewer features than the mesh has columns.
/// Source: Karakus et al. 2021, Figure 6; Xu et al. 2021, section 2.4.
class DistributedLinearImpl : public DistributedModule {
 public:
  explicit DistributedLinearImpl(const DistributedLinearOptions& options);
  DistributedLinearImpl(std::int64_t in_features, std::int64_t out_features);
  at::Tensor forward(const at::Tensor& x);

  DistributedLinearOptions options;
  at::Tensor weight;
  /// Undefined on every rank but tp rank 0; on a mesh a placeholder on every row
  /// but the first.
  at::Tensor bias;

 private:
  /// Returns what stands for the bias in the product. Where nothing else of it is trained, only
  /// rank 0 knows whether the bias is, and ranks that disagree would wait for each other in the
  /// backward: it tells the others, in one broadcast of eight bytes.
  at::Tensor bias_of_product(const TensorParallel& parallel, const at::Tensor& x) const;
  summa::LinearLayout layout_on_mesh() const;
  void create_on_mesh(const ParameterCreationScope& create);

  summa::FirstRowVectors first_row_;
};
TESSERA_MODULE(DistributedLinear);

} // namespace tessera::nn
