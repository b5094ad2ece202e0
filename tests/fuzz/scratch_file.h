#pragma once

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include <unistd.h>

#include "tests/fuzz/fuzz.h"

namespace tessera::fuzz {

/// A file with a name of one's choice, removed with this object: what reads it looks at the name.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& name) {
    char folder[] = "/tmp/tessera_fuzz_XXXXXX";
    if (mkdtemp(folder) == nullptr) {
      broken("a temporary folder can be made");
    }
    folder_ = folder;
    path_ = folder_ + "/" + name;
  }
  ~ScratchFile() {
    unlink(path_.c_str());
    rmdir(folder_.c_str());
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  const std::string& path() const {
    return path_;
  }
  void set(const void* data, std::size_t size) const {
    std::FILE* file = std::fopen(path_.c_str(), "wb");
    if (file == nullptr || std::fwrite(data, 1, size, file) != size || std::fclose(file) != 0) {
      broken("a temporary file can be written");
    }
  }
  std::string bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::string folder_;
  std::string path_;
};

} // namespace tessera::fuzz
