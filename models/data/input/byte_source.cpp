#include "models/data/input/byte_source.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <zlib.h>

#include "tessera/base/error.h"

namespace tessera::data {

namespace {

constexpr unsigned kBufferBytes = 1U << 17;
constexpr std::size_t kMostAtOnce = std::size_t{1} << 30; // gzread's sizes are int

} // namespace

ByteSource::ByteSource(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rbe")) {
  if (file_ == nullptr) {
    throw ConfigError(
        str("cannot read ", path, ": ", errno != 0 ? std::strerror(errno) : "too little memory"));
  }
  gzbuffer(file_, kBufferBytes);
}

ByteSource::~ByteSource() {
  gzclose_r(file_);
}

std::size_t ByteSource::read(char* into, std::size_t size) {
  std::size_t got = 0;
  while (got < size) {
    errno = 0;
    const int count =
        gzread(file_, into + got, static_cast<unsigned>(std::min(size - got, kMostAtOnce)));
    const int reason = errno;
    int error = Z_OK;
    const char* said = gzerror(file_, &error);
    if (count > 0) {
      got += static_cast<std::size_t>(count);
    }
    // A stream that ends in the middle gives what it has, and the error beside it.
    if (error == Z_BUF_ERROR) {
      throw ConfigError(str(path_, " is truncated: its gzip data end in the middle"));
    }
    if (count < 0 || error != Z_OK) {
      throw ConfigError(
          error == Z_ERRNO ? str("cannot read ", path_, ": ", std::strerror(reason))
                           : str(path_, " is damaged gzip data: ", said));
    }
    if (count == 0) {
      break;
    }
  }
  if (!begun_ && got > 0) {
    begun_ = true;
    if (path_.ends_with(".gz") && gzdirect(file_) != 0) {
      throw ConfigError(str(path_, " is called .gz, but it is no gzip file; decompress it first"));
    }
  }
  return got;
}

std::uint64_t ByteSource::position_bytes() const {
  const auto at = gzoffset(file_);
  return at < 0 ? 0 : static_cast<std::uint64_t>(at);
}

} // namespace tessera::data
