#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::comm {

/// Appends fixed-width values, in this machine's byte order, to a buffer.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>& out) : out_(out) {}

  template <typename T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    put_bytes(&value, sizeof(T));
  }
  void put_bytes(const void* data, std::size_t size) {
    const std::size_t at = out_.size();
    out_.resize(at + size);
    if (size != 0) {
      std::memcpy(out_.data() + at, data, size);
    }
  }

 private:
  std::vector<std::byte>& out_;
};

/// Reads what ByteWriter wrote and never a byte more.
/// Throws: CommError when fewer bytes are left than asked for.
class ByteReader {
 public:
  ByteReader(const std::byte* data, std::size_t size) : at_(data), left_(size) {}

  template <typename T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, take(sizeof(T)), sizeof(T));
    return value;
  }
  const std::byte* take(std::uint64_t size) {
    if (size > left_) {
      throw CommError(str("a message is torn: ", size, " bytes expected, ", left_, " left"));
    }
    const std::byte* at = at_;
    at_ += size;
    left_ -= size;
    return at;
  }
  std::size_t left() const {
    return left_;
  }

 private:
  const std::byte* at_;
  std::size_t left_;
};

} // namespace tessera::comm
