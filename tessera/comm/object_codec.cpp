#include "tessera/comm/object_codec.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/types.h>

#include "tessera/base/error.h"

namespace tessera::comm {

namespace {

// Layout: length of the pickle, the pickle with references in place of tensors,
// number of tensors, then each tensor: defined, dtype, sizes, elements.

template <typename T>
void put(std::vector<char>& out, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto* bytes = reinterpret_cast<const char*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(T));
}

void put_tensor(std::vector<char>& out, const at::Tensor& tensor) {
  put<std::uint8_t>(out, tensor.defined() ? 1 : 0);
  if (!tensor.defined()) {
    return;
  }
  if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_meta()) {
    throw CommError(
        str("a tensor of type ", tensor.toString(), " cannot be sent; send a plain dense one"));
  }
  const at::Tensor plain = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg();
  put(out, static_cast<std::int8_t>(plain.scalar_type()));
  put(out, static_cast<std::int64_t>(plain.dim()));
  for (const std::int64_t size : plain.sizes()) {
    put(out, size);
  }
  const auto* bytes = static_cast<const char*>(plain.data_ptr());
  out.insert(out.end(), bytes, bytes + plain.nbytes());
}

class Reader {
 public:
  Reader(const char* data, std::size_t size) : data_(data), size_(size) {}

  const char* take(std::size_t bytes) {
    if (bytes > size_ - at_) {
      throw CommError(
          str("an object message is torn: ",
              bytes,
              " bytes expected at position ",
              at_,
              " of ",
              size_));
    }
    const char* from = data_ + at_;
    at_ += bytes;
    return from;
  }
  template <typename T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof(T)), sizeof(T));
    return value;
  }
  bool at_end() const {
    return at_ == size_;
  }

 private:
  const char* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

at::Tensor get_tensor(Reader& in) {
  if (in.get<std::uint8_t>() == 0) {
    return {};
  }
  const auto type = static_cast<at::ScalarType>(in.get<std::int8_t>());
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(in.get<std::int64_t>()));
  for (std::int64_t& size : sizes) {
    size = in.get<std::int64_t>();
  }
  at::Tensor tensor = at::empty(sizes, at::TensorOptions().dtype(type));
  const char* bytes = in.take(tensor.nbytes());
  if (tensor.nbytes() > 0) {
    std::memcpy(tensor.data_ptr(), bytes, tensor.nbytes());
  }
  return tensor;
}

} // namespace

std::vector<char> encode_object(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  std::vector<char> pickled;
  try {
    pickled = torch::jit::pickle(value, &tensors);
  } catch (const c10::Error& e) {
    throw CommError(
        str("a value of type ", value.tagKind(), " cannot be sent: ", e.what_without_backtrace()));
  }
  std::size_t total = pickled.size() + 64;
  for (const at::Tensor& tensor : tensors) {
    total += 64;
    if (tensor.defined()) {
      total += static_cast<std::size_t>(tensor.numel()) * tensor.itemsize() +
               static_cast<std::size_t>(tensor.dim()) * 8;
    }
  }
  std::vector<char> out;
  out.reserve(total);
  put<std::uint64_t>(out, pickled.size());
  out.insert(out.end(), pickled.begin(), pickled.end());
  put<std::uint64_t>(out, tensors.size());
  for (const at::Tensor& tensor : tensors) {
    put_tensor(out, tensor);
  }
  return out;
}

c10::IValue decode_object(const char* data, std::size_t size) {
  Reader in(data, size);
  const auto pickled_size = static_cast<std::size_t>(in.get<std::uint64_t>());
  const char* pickled = in.take(pickled_size);
  std::vector<at::Tensor> tensors(static_cast<std::size_t>(in.get<std::uint64_t>()));
  for (at::Tensor& tensor : tensors) {
    tensor = get_tensor(in);
  }
  if (!in.at_end()) {
    throw CommError("an object message is longer than its contents");
  }
  try {
    return torch::jit::unpickle(pickled, pickled_size, nullptr, tensors);
  } catch (const c10::Error& e) {
    throw CommError(str("an object message cannot be read: ", e.what_without_backtrace()));
  }
}

} // namespace tessera::comm
