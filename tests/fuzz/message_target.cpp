#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/transport/message.h"

#include "tests/fuzz/fuzz.h"

namespace tessera::fuzz {

namespace {

std::string message_of(const c10::IValue& body) {
  const comm::Stripped stripped = comm::strip(body);
  std::vector<comm::TensorStub> stubs;
  std::vector<std::byte> payload;
  for (const at::Tensor& tensor : stripped.tensors) {
    comm::TensorStub stub = comm::describe(tensor);
    if (stub.bytes > 0) {
      stub.place = comm::Place::kInline;
      stub.offset = payload.size();
      const auto* bytes = static_cast<const std::byte*>(tensor.data_ptr());
      payload.insert(payload.end(), bytes, bytes + stub.bytes);
    }
    stubs.push_back(stub);
  }
  const auto bytes = transport::encode({}, stubs, stripped.structure, payload);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

} // namespace

std::vector<std::string> seeds() {
  const at::Tensor a = at::arange(6, at::kFloat).reshape({2, 3});
  const at::Tensor b = at::arange(3, at::kLong);
  return {
      message_of({}),
      message_of(a),
      message_of(c10::ivalue::Tuple::create(
          {a,
           std::int64_t{7},
           0.5,
           true,
           std::string("text"),
           c10::ivalue::Tuple::create({b, a, at::empty({0})})})),
      message_of(c10::List<at::Tensor>({a, b}))};
}

} // namespace tessera::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  try {
    const transport::MessageView message =
        transport::decode(reinterpret_cast<const std::byte*>(data), size);
    std::vector<at::Tensor> tensors;
    for (const comm::TensorStub& stub : message.stubs) {
      if (stub.place == comm::Place::kInline && stub.offset + stub.bytes > message.payload_bytes) {
        fuzz::broken("an inline tensor lies inside its message");
      }
      // Meta tensors have any shape without its memory.
      tensors.push_back(at::empty(stub.shape, at::dtype(stub.dtype).device(at::kMeta)));
    }
    comm::strip(comm::assemble(message, tensors));
    fuzz::count(true);
  } catch (const CommError&) {
    fuzz::count(false);
  }
  return 0;
}
