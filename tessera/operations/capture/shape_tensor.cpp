#include "tessera/operations/capture/shape_tensor.h"

#include <ATen/ATen.h>

#include "tessera/autograd/dispatch_mode.h"

namespace tessera::operations {

namespace {

struct ShapeTensorImpl : c10::TensorImpl {
  ShapeTensorImpl(const at::TensorOptions& options, at::IntArrayRef sizes, at::IntArrayRef strides)
      : c10::TensorImpl(options.computeDispatchKey(), options.dtype(), options.device()) {
    set_storage_access_should_throw();
    set_sizes_and_strides(sizes, strides);
  }
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter,
      bool allow_tensor_metadata_change) const override {
    return other_handle(version_counter, allow_tensor_metadata_change);
  }
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version_counter,
      bool allow_tensor_metadata_change) const override {
    return other_handle(version_counter, allow_tensor_metadata_change);
  }
  c10::intrusive_ptr<c10::TensorImpl> other_handle(
      const c10::VariableVersion& version_counter,
      bool allow_tensor_metadata_change) const {
    auto copy = c10::make_intrusive<ShapeTensorImpl>(
        at::TensorOptions().dtype(dtype()).device(device()), sizes(), strides());
    copy_tensor_metadata(this, copy.get(), version_counter, allow_tensor_metadata_change);
    copy->first =
        first != nullptr
            ? first
            : c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(const_cast<ShapeTensorImpl*>(this));
    return copy;
  }

  c10::intrusive_ptr<c10::TensorImpl> first; // of which this is another handle
};

} // namespace

at::Tensor make_shape_tensor(
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    at::ScalarType dtype,
    at::Device device,
    bool requires_grad) {
  at::Tensor made = at::detail::make_tensor<ShapeTensorImpl>(
      at::TensorOptions().dtype(dtype).device(device), sizes, strides);
  if (requires_grad && (at::isFloatingType(dtype) || at::isComplexType(dtype))) {
    made.set_requires_grad(true);
  }
  attract_mode(made);
  return made;
}

bool shape_only(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has(kModeKey) &&
         dynamic_cast<const ShapeTensorImpl*>(tensor.unsafeGetTensorImpl()) != nullptr;
}

const c10::TensorImpl* shape_tensor_of(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!shape_only(tensor)) {
    return impl;
  }
  const auto& first = static_cast<const ShapeTensorImpl*>(impl)->first;
  return first == nullptr ? impl : first.get();
}

} // namespace tessera::operations
