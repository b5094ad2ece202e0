#pragma once

#include <string>
#include <vector>

#include "tessera/nn/parallel/parameter_creation.h"
#include "tessera/nn/summa/mesh.h"

// Vectors (biases, weights of norms) live on the first mesh row, divided along
// its columns, and are broadcast down the columns where they are used.
// Source: Xu et al. 2021, section 3.2.2 and figure 5.
namespace tessera::nn::summa {

/// Adds the vector to y in place. The vector's gradient, summed over the mesh
/// column, is returned on the first row only.
///
/// Shapes: y [..., n of my column], vector [n of my column] on the first row,
/// any tensor with the same requires_grad elsewhere.
/// Collective over the column, forward and backward. Threads: one at a time.
/// Cost: one broadcast, in the backward one reduction, of n elements.
at::Tensor add_from_first_row(const MeshPtr& mesh, const at::Tensor& y, const at::Tensor& vector);

/// Returns the tensor of the first mesh row on all ranks of the column, without history.
/// Collective over the column. Threads: one at a time.
/// Throws: ShapeError on the first row when `vector` does not have `sizes`.
at::Tensor broadcast_from_first_row(
    const Mesh& mesh,
    const at::Tensor& vector,
    at::IntArrayRef sizes,
    const at::TensorOptions& options);

/// Sums the tensors of the column into the first row's one, in place and without
/// history. Returns that on the first row and an undefined tensor elsewhere.
/// Collective over the column. Threads: one at a time.
at::Tensor reduce_to_first_row(const Mesh& mesh, const at::Tensor& tensor);

/// Holds the vectors of one module.
class FirstRowVectors {
 public:
  /// Creates and registers this rank's part on the first row. On the other rows it
  /// returns a placeholder that is no parameter of the module; autograd then
  /// builds the same graph on all rows. Not collective. Threads: as `create`.
  at::Tensor create(
      const Mesh& mesh,
      const ParameterCreationScope& create,
      const std::string& name,
      const Blocks& columns,
      int groups = 1,
      const Initializer& initializer = {});
  /// Gives placeholders the requires_grad of the first row's vectors. The module calls it first
  /// in every `forward`, because only the first row knows when a vector is frozen or thawed, and
  /// rows that disagree would wait for each other in the backward. Collective over the column:
  /// one broadcast of a few bytes; none where gradients are off.
  void agree(const Mesh& mesh);

 private:
  std::vector<at::Tensor> vectors_; // or placeholders
};

} // namespace tessera::nn::summa
