#pragma once

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "tessera/nn/summa/boundary.h"
#include "tessera/nn/summa/modules.h"

// torch's own layers on a mesh, each by itself: a rank brings its samples whole
// and gets its results whole. Two all-to-alls in the row surround every call;
// modules that stay on the mesh from one layer to the next (transformer.h) need
// them only at their ends.
// Calls are collective over the mesh. Threads: as torch::nn::Module.
namespace tessera::nn::two_d {

/// Shapes: [b, ..., in] -> [b, ..., out].
/// Throws: ShapeError when `in` or `out` is smaller than a side of the mesh.
class DropInLinear2D : public Linear2DImpl {
 public:
  explicit DropInLinear2D(const torch::nn::LinearOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  Boundary boundary_;
};

/// Shapes: ids [b, ...] -> [b, ..., width].
/// Throws: ShapeError for a table smaller than a side of the mesh, and for
/// options that need whole rows: max_norm, scale_grad_by_freq, sparse.
class DropInEmbedding2D : public Embedding2DImpl {
 public:
  explicit DropInEmbedding2D(const torch::nn::EmbeddingOptions& options);
  at::Tensor forward(const at::Tensor& ids);

 private:
  Boundary boundary_;
  Blocks hidden_;
};

/// Fills the look-up table for torch's classes on a mesh.
void register_mesh_rules();

} // namespace tessera::nn::two_d
