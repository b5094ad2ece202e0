#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::operations {

/// Makes a tensor that has shape, strides, type and device of a real one but no memory: what a
/// forward is given while its operators are seen. What reads its numbers past all operators
/// (data_ptr, accessor) fails; operators on it outside of a Capture are a UserError.
at::Tensor make_shape_tensor(
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    at::ScalarType dtype,
    at::Device device,
    bool requires_grad);

/// Returns whether the tensor is one of those.
bool shape_only(const at::Tensor& tensor);

/// Returns the shape tensor that `tensor` is another handle of; its own where it is none.
/// torch::zeros and other functions of libtorch return a new handle of what their operator made.
const c10::TensorImpl* shape_tensor_of(const at::Tensor& tensor);

} // namespace tessera::operations
