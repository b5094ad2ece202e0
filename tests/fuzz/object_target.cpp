#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/codec/object_codec.h"

#include "tests/fuzz/fuzz.h"

namespace tessera::fuzz {

namespace {

std::string object_of(const c10::IValue& value) {
  const auto bytes = comm::encode_object(value);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

} // namespace

std::vector<std::string> seeds() {
  const at::Tensor a = at::arange(6, at::kFloat).reshape({2, 3});
  return {
      object_of({}),
      object_of(a),
      object_of(c10::ivalue::Tuple::create({a, std::string("text"), at::empty({0}), a.t()})),
      object_of(c10::List<at::Tensor>({a, at::Tensor()}))};
}

} // namespace tessera::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  try {
    comm::encode_object(comm::decode_object({bytes, bytes + size}));
    fuzz::count(true);
  } catch (const CommError&) {
    fuzz::count(false);
  }
  return 0;
}
