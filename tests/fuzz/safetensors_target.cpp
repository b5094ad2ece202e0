#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/safetensors.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/scratch_file.h"

namespace tessera::fuzz {

namespace {

std::string file_of(const NamedTensors& tensors) {
  const ScratchFile file("seed.safetensors");
  checkpoint::write_safetensors(file.path(), tensors, {{"format", "pt"}});
  return file.bytes();
}

} // namespace

std::vector<std::string> seeds() {
  return {
      file_of({}),
      file_of({{"w", at::arange(6, at::kFloat).reshape({2, 3})}}),
      file_of(
          {{"mask", at::ones({3}, at::kBool)},
           {"half", at::ones({2, 2}, at::kBFloat16)},
           {"ids", at::arange(4, at::kLong)},
           {"none", at::empty({0, 4})},
           {"scalar", at::zeros({}, at::kDouble)}})};
}

} // namespace tessera::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  static const fuzz::MemoryFile file;
  file.set(data, size);
  try {
    const checkpoint::SafetensorsFile tensors(file.path());
    for (const auto& [name, info] : tensors.tensors()) {
      if (info.end > size || info.begin > info.end) {
        fuzz::broken("a tensor lies inside its file");
      }
      const at::Tensor tensor = tensors.read(name);
      if (tensor.nbytes() != info.end - info.begin) {
        fuzz::broken("a tensor has the bytes that its entry says");
      }
    }
    fuzz::count(true);
  } catch (const CheckpointError&) {
    fuzz::count(false);
  }
  return 0;
}
