#include "tessera/comm/codec/object_codec.h"

#include <cstring>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/codec/value_codec.h"

namespace tessera::comm {

namespace {

at::Tensor tensor_of(const TensorStub& stub, const ValueView& view) {
  if (stub.place == Place::kUndefined) {
    return {};
  }
  if (stub.place > Place::kInline || stub.device != c10::kCPU) {
    throw CommError("an object message is damaged: a tensor is not inside it");
  }
  at::Tensor tensor = at::empty(stub.shape, at::dtype(stub.dtype));
  if (stub.bytes != 0) {
    std::memcpy(tensor.data_ptr(), view.payload + stub.offset, stub.bytes);
  }
  return tensor;
}

} // namespace

std::vector<std::byte> encode_object(const c10::IValue& value) {
  const Stripped stripped = strip(value);
  std::vector<TensorStub> stubs;
  std::size_t payload = 0;
  for (const at::Tensor& tensor : stripped.tensors) {
    TensorStub& stub = stubs.emplace_back(describe(tensor));
    if (stub.device == c10::kMeta) {
      throw CommError("a meta tensor cannot be sent as an object; send its shape");
    }
    stub.device = c10::kCPU; // where it arrives
    if (stub.bytes != 0) {
      stub.place = Place::kInline;
      stub.offset = payload;
      payload += stub.bytes;
    }
  }
  std::vector<std::byte> bytes;
  append_value(bytes, stubs, stripped.structure, payload);
  std::byte* room = bytes.data() + bytes.size() - payload;
  for (std::size_t i = 0; i < stubs.size(); ++i) {
    if (stubs[i].bytes != 0) {
      copy_elements(stripped.tensors[i], room + stubs[i].offset);
    }
  }
  return bytes;
}

c10::IValue decode_object(const std::vector<std::byte>& bytes) {
  const ValueView view = read_value(bytes.data(), bytes.size());
  std::vector<at::Tensor> tensors;
  tensors.reserve(view.stubs.size());
  for (const TensorStub& stub : view.stubs) {
    tensors.push_back(tensor_of(stub, view));
  }
  return assemble(view, tensors);
}

} // namespace tessera::comm
