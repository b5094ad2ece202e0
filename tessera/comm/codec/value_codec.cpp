#include "tessera/comm/codec/value_codec.h"

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "tessera/base/hash.h"
#include "tessera/comm/codec/bytes.h"

namespace tessera::comm {

namespace {

constexpr std::uint32_t kMagic = 0x32535354; // "TSS2"
constexpr int kMaxDepth = 200;
constexpr std::size_t kMaxDims = 64;
// Beyond this number of tensors the encoder no longer looks for repeated ones.
constexpr std::size_t kSearchedTensors = 64;

enum class Tag : std::uint8_t {
  kNone,
  kFalse,
  kTrue,
  kInt,
  kDouble,
  kString,
  kTuple,
  kTensor,
  kUndefinedTensor,
  kPickle,
};

constexpr at::ScalarType kDtypes[] = {
    at::kByte,
    at::kChar,
    at::kShort,
    at::kInt,
    at::kLong,
    at::kHalf,
    at::kFloat,
    at::kDouble,
    at::ScalarType::ComplexHalf,
    at::ScalarType::ComplexFloat,
    at::ScalarType::ComplexDouble,
    at::kBool,
    at::kBFloat16,
};

bool travels(at::ScalarType dtype) {
  return std::find(std::begin(kDtypes), std::end(kDtypes), dtype) != std::end(kDtypes);
}

class Stripper {
 public:
  explicit Stripper(Stripped& into) : into_(into), out_(into.structure) {}

  void add(const c10::IValue& value, int depth) {
    if (depth > kMaxDepth) {
      throw CommError(
          str("a value nested more than ", kMaxDepth, " deep cannot be sent; flatten it"));
    }
    if (value.isTensor()) {
      add_tensor(value.toTensor());
    } else if (value.isNone()) {
      out_.put(Tag::kNone);
    } else if (value.isBool()) {
      out_.put(value.toBool() ? Tag::kTrue : Tag::kFalse);
    } else if (value.isInt()) {
      out_.put(Tag::kInt);
      out_.put<std::int64_t>(value.toInt());
    } else if (value.isDouble()) {
      out_.put(Tag::kDouble);
      out_.put<double>(value.toDouble());
    } else if (value.isString()) {
      const std::string& text = value.toStringRef();
      out_.put(Tag::kString);
      out_.put<std::uint64_t>(text.size());
      out_.put_bytes(text.data(), text.size());
    } else if (value.isTuple()) {
      const auto& elements = value.toTupleRef().elements();
      out_.put(Tag::kTuple);
      out_.put<std::uint64_t>(elements.size());
      for (const auto& element : elements) {
        add(element, depth + 1);
      }
    } else {
      add_pickled(value);
    }
  }

 private:
  void add_tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      out_.put(Tag::kUndefinedTensor);
      return;
    }
    out_.put(Tag::kTensor);
    out_.put<std::uint32_t>(index_of(tensor));
  }

  // The same tensor passed as query, key and value travels once.
  std::uint32_t index_of(const at::Tensor& tensor) {
    const auto& tensors = into_.tensors;
    const std::size_t searched = std::min(tensors.size(), kSearchedTensors);
    for (std::size_t i = 0; i < searched; ++i) {
      if (tensors[i].is_same(tensor)) {
        return static_cast<std::uint32_t>(i);
      }
    }
    into_.tensors.push_back(tensor);
    return static_cast<std::uint32_t>(into_.tensors.size() - 1);
  }

  void add_pickled(const c10::IValue& value) {
    std::vector<at::Tensor> table;
    std::vector<char> blob;
    try {
      blob = torch::jit::pickle(value, &table);
    } catch (const c10::Error& error) {
      throw CommError(
          str("a value of kind ",
              value.tagKind(),
              " cannot be sent: ",
              error.what_without_backtrace()));
    }
    const auto* data = reinterpret_cast<const std::byte*>(blob.data());
    // The unpickler trusts its input, so it only sees bytes with the hash that they had here.
    out_.put(Tag::kPickle);
    out_.put<std::uint64_t>(blob.size());
    out_.put<std::uint64_t>(hash_bytes(data, blob.size()));
    out_.put<std::uint32_t>(static_cast<std::uint32_t>(into_.tensors.size()));
    out_.put<std::uint32_t>(static_cast<std::uint32_t>(table.size()));
    out_.put_bytes(data, blob.size());
    for (auto& tensor : table) {
      into_.tensors.push_back(std::move(tensor));
    }
  }

  Stripped& into_;
  ByteWriter out_;
};

class Assembler {
 public:
  Assembler(const ValueView& view, const std::vector<at::Tensor>& tensors)
      : in_(view.structure, view.structure_bytes), tensors_(tensors) {}

  c10::IValue next(int depth) {
    if (depth > kMaxDepth) {
      throw CommError("a message is damaged: nested too deep");
    }
    const auto tag = in_.get<Tag>();
    switch (tag) {
      case Tag::kNone:
        return {};
      case Tag::kFalse:
        return false;
      case Tag::kTrue:
        return true;
      case Tag::kInt:
        return in_.get<std::int64_t>();
      case Tag::kDouble:
        return in_.get<double>();
      case Tag::kString: {
        const auto size = in_.get<std::uint64_t>();
        const auto* text = reinterpret_cast<const char*>(in_.take(size));
        return std::string(text, size);
      }
      case Tag::kTuple:
        return next_tuple(depth);
      case Tag::kTensor:
        return tensor_at(in_.get<std::uint32_t>());
      case Tag::kUndefinedTensor:
        return at::Tensor();
      case Tag::kPickle:
        return next_pickled();
    }
    throw CommError(str("a message is damaged: unknown tag ", static_cast<int>(tag)));
  }

  void finish() const {
    if (in_.left() != 0) {
      throw CommError(str("a message is damaged: ", in_.left(), " bytes behind its value"));
    }
  }

 private:
  c10::IValue next_tuple(int depth) {
    const auto size = in_.get<std::uint64_t>();
    if (size > in_.left()) { // an element takes a byte at least
      throw CommError(str("a message is damaged: a tuple of ", size));
    }
    std::vector<c10::IValue> elements;
    elements.reserve(size);
    for (std::uint64_t i = 0; i < size; ++i) {
      elements.push_back(next(depth + 1));
    }
    return c10::ivalue::Tuple::create(std::move(elements));
  }

  const at::Tensor& tensor_at(std::uint32_t index) const {
    if (index >= tensors_.size()) {
      throw CommError(str("a message is damaged: tensor ", index, " of ", tensors_.size()));
    }
    return tensors_[index];
  }

  c10::IValue next_pickled() {
    const auto size = in_.get<std::uint64_t>();
    const auto expected = in_.get<std::uint64_t>();
    const auto first = in_.get<std::uint32_t>();
    const auto count = in_.get<std::uint32_t>();
    const std::byte* blob = in_.take(size);
    if (first > tensors_.size() || count > tensors_.size() - first ||
        hash_bytes(blob, size) != expected) {
      throw CommError("a message is damaged: pickled part");
    }
    try {
      return torch::jit::unpickle(
          reinterpret_cast<const char*>(blob),
          size,
          nullptr,
          c10::ArrayRef<at::Tensor>(tensors_.data() + first, count));
    } catch (const c10::Error& error) {
      throw CommError(str("a pickled value cannot be read: ", error.what_without_backtrace()));
    }
  }

  ByteReader in_;
  const std::vector<at::Tensor>& tensors_;
};

// Bytes of a dense tensor; checks that even without its zero dimensions the
// shape stays within what an int64 can address.
std::uint64_t dense_bytes(const std::vector<std::int64_t>& shape, at::ScalarType dtype) {
  std::int64_t product = static_cast<std::int64_t>(c10::elementSize(dtype));
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0 || (extent != 0 && __builtin_mul_overflow(product, extent, &product))) {
      throw CommError("a message is damaged: a tensor's shape is impossible");
    }
    empty = empty || extent == 0;
  }
  return empty ? 0 : static_cast<std::uint64_t>(product);
}

TensorStub decode_stub(ByteReader& in, std::uint64_t payload_bytes) {
  TensorStub stub;
  stub.dtype = in.get<at::ScalarType>();
  stub.device = static_cast<c10::DeviceType>(in.get<std::int8_t>());
  stub.place = in.get<Place>();
  const auto dims = in.get<std::uint8_t>();
  stub.offset = in.get<std::uint64_t>();
  if (!travels(stub.dtype) || dims > kMaxDims || stub.place > Place::kChannel ||
      !c10::isValidDeviceType(stub.device)) {
    throw CommError("a message is damaged: a tensor stub is impossible");
  }
  stub.shape.reserve(dims);
  for (int i = 0; i < dims; ++i) {
    stub.shape.push_back(in.get<std::int64_t>());
  }
  stub.bytes = dense_bytes(stub.shape, stub.dtype);
  if (stub.device == c10::kMeta || stub.place == Place::kUndefined) {
    stub.bytes = 0;
  }
  const bool carries_nothing = stub.place == Place::kNone || stub.place == Place::kUndefined;
  if (carries_nothing != (stub.bytes == 0)) {
    throw CommError("a message is damaged: a tensor has no place");
  }
  if (stub.place == Place::kInline &&
      (stub.offset > payload_bytes || stub.bytes > payload_bytes - stub.offset)) {
    throw CommError("a message is damaged: a tensor lies outside of it");
  }
  return stub;
}

} // namespace

Stripped strip(const c10::IValue& value) {
  Stripped stripped;
  Stripper(stripped).add(value, 0);
  return stripped;
}

TensorStub describe(const at::Tensor& tensor) {
  TensorStub stub;
  if (!tensor.defined()) {
    stub.place = Place::kUndefined;
    return stub;
  }
  if (tensor.layout() != c10::kStrided || !travels(tensor.scalar_type()) ||
      tensor.dim() > static_cast<std::int64_t>(kMaxDims)) {
    throw CommError(tessera::str(
        "a tensor of layout ",
        tensor.layout(),
        " and dtype ",
        tensor.scalar_type(),
        " cannot be sent; make it dense and not quantized first"));
  }
  stub.dtype = tensor.scalar_type();
  stub.device = tensor.device().type();
  stub.shape = tensor.sizes().vec();
  stub.bytes = stub.device == c10::kMeta
                   ? 0
                   : static_cast<std::uint64_t>(tensor.numel()) * c10::elementSize(stub.dtype);
  return stub;
}

void copy_elements(const at::Tensor& tensor, std::byte* into) {
  // A sharded parameter and its views have no memory; the operator below finds their elements.
  if (tensor.device().is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() &&
      tensor.storage().data() != nullptr) {
    std::memcpy(into, tensor.data_ptr(), tensor.nbytes());
    return;
  }
  const at::NoGradGuard no_grad;
  at::from_blob(into, tensor.sizes(), at::dtype(tensor.scalar_type())).copy_(tensor);
}

void append_value(
    std::vector<std::byte>& bytes,
    const std::vector<TensorStub>& stubs,
    const std::vector<std::byte>& structure,
    std::size_t payload_bytes) {
  bytes.reserve(bytes.size() + 64 + stubs.size() * 64 + structure.size() + payload_bytes);
  ByteWriter out(bytes);
  out.put(kMagic);
  out.put(static_cast<std::uint32_t>(stubs.size()));
  out.put<std::uint64_t>(structure.size());
  out.put<std::uint64_t>(payload_bytes);
  for (const auto& stub : stubs) {
    out.put(stub.dtype);
    out.put(static_cast<std::int8_t>(stub.device));
    out.put(stub.place);
    out.put(static_cast<std::uint8_t>(stub.shape.size()));
    out.put(stub.offset);
    out.put_bytes(stub.shape.data(), stub.shape.size() * sizeof(std::int64_t));
  }
  out.put_bytes(structure.data(), structure.size());
  bytes.resize(bytes.size() + payload_bytes);
}

ValueView read_value(const std::byte* data, std::size_t size) {
  ByteReader in(data, size);
  if (in.get<std::uint32_t>() != kMagic) {
    throw CommError("these bytes are not a message");
  }
  ValueView view;
  const auto stubs = in.get<std::uint32_t>();
  view.structure_bytes = in.get<std::uint64_t>();
  view.payload_bytes = in.get<std::uint64_t>();
  if (stubs > in.left() / 12) { // a stub takes 12 bytes at least
    throw CommError(str("a message is damaged: ", stubs, " tensor stubs"));
  }
  view.stubs.reserve(stubs);
  for (std::uint32_t i = 0; i < stubs; ++i) {
    view.stubs.push_back(decode_stub(in, view.payload_bytes));
  }
  view.structure = in.take(view.structure_bytes);
  view.payload = in.take(view.payload_bytes);
  if (in.left() != 0) {
    throw CommError(str("a message is damaged: ", in.left(), " bytes behind its end"));
  }
  return view;
}

c10::IValue assemble(const ValueView& view, const std::vector<at::Tensor>& tensors) {
  Assembler assembler(view, tensors);
  c10::IValue value = assembler.next(0);
  assembler.finish();
  return value;
}

} // namespace tessera::comm
