#include "tessera/train/split.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::detail {

namespace {

bool holds_packed_sequence(const c10::IValue& value) {
  if (!value.isTuple()) {
    return false;
  }
  const auto& elements = value.toTupleRef().elements();
  if (!elements.empty() && elements[0].isString() && elements[0].toStringRef() == kPackedSequence) {
    return true;
  }
  return std::any_of(elements.begin(), elements.end(), holds_packed_sequence);
}

} // namespace

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
  const at::Tensor part = tensor.narrow(axis, microbatch * size, size);
  // Parts share the batch's memory, so what a step changes in place is changed as in the plain
  // script; but a change of one part must not count as one of the others' in autograd.
  return part.requires_grad() ? part : part.variable_data();
}

c10::IValue
slice_value(const c10::IValue& value, int microbatches, int microbatch, int axis, int argument) {
  if (microbatches > 1 && holds_packed_sequence(value)) {
    throw ShapeError(tessera::str(
        "argument ",
        argument,
        " of the step holds a PackedSequence; its rows are time steps of all samples, so they "
        "cannot be split into ",
        microbatches,
        " microbatches. Pass the padded tensor and the lengths, and call pack_padded_sequence in "
        "the step function"));
  }
  return map_tensors(value, [&](const at::Tensor& tensor) {
    return slice_tensor(tensor, microbatches, microbatch, axis, argument);
  });
}

} // namespace tessera::detail
