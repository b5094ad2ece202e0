#pragma once

#include <string>
#include <vector>

#include "tessera/nn/parallel/parameter_creation.h"
#include "tessera/nn/summa/mesh.h"

// Vectors (biases, weights of norms) live on the first mesh row, divided along
// its columns, and are broadcast down the columns where they are used.
// Source: Xu et al. 2021, section 3.2.2 and figure 5.
namespace tessera::nn::two_d {

/// y + vector, in place; the vector's gradient is the column's sum and comes to
/// the first row.
///
/// Shapes: y [..., n of my column], vector [n of my column] on the first row,
/// any tensor with the same requires_grad elsewhere.
/// Collective over the column, forward and backward. Threads: one at a time.
/// Cost: one broadcast, in the backward one reduction, of n elements.
at::Tensor add_from_first_row(const MeshPtr& mesh, const at::Tensor& y, const at::Tensor& vector);

/// The tensor of the first mesh row on all ranks of the column. No history.
/// Collective over the column. Threads: one at a time.
at::Tensor broadcast_from_first_row(
    const Mesh& mesh,
    const at::Tensor& vector,
    at::IntArrayRef sizes,
    const at::TensorOptions& options);

/// Adds the column's tensors into the first row's; returns it there, an
/// undefined tensor elsewhere. No history.
/// Collective over the column. Threads: one at a time.
at::Tensor reduce_to_first_row(const Mesh& mesh, const at::Tensor& tensor);

/// The vectors of one module.
class FirstRowVectors {
 public:
  /// Registers the rank's part on the first row. Elsewhere a placeholder that
  /// is registered nowhere stands for it in autograd, so that all rows have the
  /// same graph. Not collective. Threads: as `create`.
  at::Tensor create(
      const Mesh& mesh,
      const ParameterCreationScope& create,
      const std::string& name,
      const Blocks& columns,
      int groups = 1,
      const Initializer& initializer = {});
  /// Call first in `forward`: at the first call the column learns whether the
  /// first row trains its vectors. Collective over the column: one broadcast.
  void agree(const Mesh& mesh);

 private:
  std::vector<at::Tensor> vectors_; // or placeholders
  bool agreed_ = false;
};

} // namespace tessera::nn::two_d
