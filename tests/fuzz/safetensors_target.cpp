#include <cstdlib>
#include <fstream>
#include <iterator>

#include <sys/mman.h>
#include <unistd.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/safetensors.h"

#include "tests/fuzz/fuzz.h"

namespace tessera::fuzz {

namespace {

/// A file in memory with a path.
class MemoryFile {
 public:
  MemoryFile() : file_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (file_ < 0) {
      broken("a file in memory can be made");
    }
  }
  ~MemoryFile() {
    close(file_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const {
    return "/proc/self/fd/" + std::to_string(file_);
  }
  void set(const void* data, std::size_t size) const {
    if (ftruncate(file_, 0) != 0 || pwrite(file_, data, size, 0) != static_cast<ssize_t>(size)) {
      broken("a file in memory can be written");
    }
  }

 private:
  int file_;
};

std::string file_of(const NamedTensors& tensors) {
  char folder[] = "/tmp/tessera_fuzz_XXXXXX";
  if (mkdtemp(folder) == nullptr) {
    broken("a temporary folder can be made");
  }
  const std::string path = std::string(folder) + "/seed.safetensors";
  checkpoint::write_safetensors(path, tensors, {{"format", "pt"}});
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  unlink(path.c_str());
  rmdir(folder);
  return bytes;
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
