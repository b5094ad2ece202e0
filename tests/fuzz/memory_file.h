#pragma once

#include <cstdint>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

namespace tessera::fuzz {

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

} // namespace tessera::fuzz
