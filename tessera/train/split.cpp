#include "tessera/train/split.h"

#include "tessera/base/error.h"

namespace tessera::detail {

at::Tensor
slice_tensor(const at::Tensor& tensor, int microbatches, int microbatch, int axis, int argument) {
  if (axis < 0 || axis >= tensor.dim()) {
    throw ShapeError(tessera::str(
        "argument ",
        argument,
        " of the step has shape ",
        tensor.sizes(),
        ", so it cannot be split along axis ",
        axis,
        "; name it in non_split_inputs or give its axis in "
        "input_split_axes"));
  }
  const std::int64_t rows = tensor.size(axis);
  if (rows % microbatches != 0) {
    throw ShapeError(tessera::str(
        "argument ",
        argument,
        " of the step has ",
        rows,
        " rows along axis ",
        axis,
        ", which ",
        microbatches,
        " microbatches do not divide; drop the last incomplete batch, or "
        "set microbatches to a divisor of ",
        rows));
  }
  const std::int64_t size = rows / microbatches;
  return tensor.narrow(axis, microbatch * size, size);
}

} // namespace tessera::detail
