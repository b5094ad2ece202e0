#pragma once

#include <cstdint>

#include "tessera/nn/layers/transformer_options.h"
#include "tessera/nn/module/module.h"
#include "tessera/nn/parallel/distributed_module.h"
#include "tessera/nn/summa/first_row.h"
#include "tessera/nn/summa/layer_norm.h"

namespace tessera::nn {

struct DistributedLayerNormOptions {
  std::int64_t hidden_size = 0;
  double layernorm_epsilon = 1e-5;
  /// By the root mean square: no mean, no bias.
  bool rms = false;
};

/// Layer norm over the last dimension. Under `memory` every rank has some of
/// the channels of all samples: the two moments are all-reduced, the rest is
/// element by element. Under `speed` it is the plain norm of what a rank has.
/// On a mesh moments are combined along the rows (summa/layer_norm.h).
///
/// Shapes: x_...I -> y_...I; as a part of another module under `memory` and on
/// a mesh x_...i -> y_...i. Weights are ones, biases zeros.
/// Collective over the TP_GROUP. Threads: as torch::nn::Module.
/// Cost under `memory`: an all-reduce of two numbers a row, f64 in forward
/// (sums of squares cancel), f32 in backward.
/// Source: Karakus et al. 2021, appendix F.2; Xu et al. 2021, section 3.2.2.
class DistributedLayerNormImpl : public DistributedModule {
 public:
  explicit DistributedLayerNormImpl(
      const DistributedLayerNormOptions& options,
      Role role = Role::kAlone);
  at::Tensor forward(const at::Tensor& x);
  /// The norm of a residual sum for a layer whose weights have `dtype`: of a sum in f32 beside
  /// 16-bit weights it is computed in f32 and rounded once; else it is `forward`. Of a part.
  at::Tensor forward_to(const at::Tensor& x, at::ScalarType dtype);

  /// The norm of activations on a mesh.
  summa::Norm mesh_norm() const;

  DistributedLayerNormOptions options;
  at::Tensor weight; // on a mesh a placeholder but on its first row
  at::Tensor bias; // likewise; undefined for rms

 private:
  at::Tensor norm(
      const TensorParallel& parallel,
      const at::Tensor& x,
      const at::Tensor& factors,
      const at::Tensor& offsets);

  Role role_;
  summa::FirstRowVectors first_row_;
};
TESSERA_MODULE(DistributedLayerNorm);

/// For the parts of a transformer layer.
DistributedLayerNorm make_part_norm(const TransformerOptions& options);

} // namespace tessera::nn
