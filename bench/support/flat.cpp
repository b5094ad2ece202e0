#include "bench/support/flat.h"

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/tensor/dtype.h"

namespace tessera {

FlatLayout flat_layout(at::TensorList tensors, std::int64_t alignment_bytes) {
  FlatLayout layout;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor& first = tensors.front();
    if (tensor.scalar_type() != first.scalar_type() || tensor.device() != first.device()) {
      throw ShapeError(tessera::str(
          "one flat buffer holds one type on one device, found ",
          dtype_name(first.scalar_type()),
          " on ",
          first.device(),
          " and ",
          dtype_name(tensor.scalar_type()),
          " on ",
          tensor.device(),
          ": make one buffer for each"));
    }
    const auto item = static_cast<std::int64_t>(tensor.itemsize());
    if (alignment_bytes < item || alignment_bytes % item != 0) {
      throw ShapeError(
          str("an alignment of ",
              alignment_bytes,
              " bytes is no multiple of the ",
              item,
              " bytes of ",
              dtype_name(tensor.scalar_type())));
    }
    const std::int64_t step = alignment_bytes / item;
    layout.offsets.push_back(layout.elements);
    layout.elements += (tensor.numel() + step - 1) / step * step;
  }
  return layout;
}

std::vector<at::Tensor>
views_of(const at::Tensor& buffer, at::TensorList like, const FlatLayout& layout) {
  if (buffer.dim() != 1 || buffer.numel() < layout.elements ||
      like.size() != layout.offsets.size()) {
    throw ShapeError(tessera::str(
        "a flat buffer of ",
        layout.elements,
        " elements for ",
        layout.offsets.size(),
        " tensors was expected, found sizes ",
        buffer.sizes(),
        " for ",
        like.size()));
  }
  std::vector<at::Tensor> views;
  views.reserve(like.size());
  for (std::size_t i = 0; i < like.size(); ++i) {
    views.push_back(buffer.narrow(0, layout.offsets[i], like[i].numel()).view(like[i].sizes()));
  }
  return views;
}

at::Tensor flatten(at::TensorList tensors, const FlatLayout& layout) {
  if (tensors.empty()) {
    throw ShapeError("flatten: no tensors, so neither type nor device");
  }
  at::Tensor buffer = at::empty({layout.elements}, tensors.front().options());
  const auto views = views_of(buffer, tensors, layout);
  for (std::size_t i = 0; i < views.size(); ++i) {
    views[i].copy_(tensors[i].detach());
    const std::int64_t end = layout.offsets[i] + tensors[i].numel();
    const std::int64_t next = i + 1 < views.size() ? layout.offsets[i + 1] : layout.elements;
    buffer.narrow(0, end, next - end).zero_();
  }
  return buffer;
}

void unflatten_into(const at::Tensor& buffer, at::TensorList tensors, const FlatLayout& layout) {
  const auto views = views_of(buffer, tensors, layout);
  for (std::size_t i = 0; i < views.size(); ++i) {
    tensors[i].detach().copy_(views[i]);
  }
}

} // namespace tessera
