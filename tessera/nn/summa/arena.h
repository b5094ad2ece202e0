#pragma once

#include <cstddef>
#include <map>

namespace tessera::nn::two_d {

/// Hands out parts of a stretch of memory, first fit. Knows offsets only.
class Arena {
 public:
  Arena(std::size_t begin, std::size_t end) : begin_(begin), end_(end) {}

  /// Offset of `bytes` bytes on a multiple of 64.
  /// Throws: ConfigError when no such stretch is free.
  std::size_t take(std::size_t bytes);
  void give_back(std::size_t offset);
  /// The furthest byte that was ever in use, from the beginning.
  std::size_t high_water() const {
    return high_water_;
  }

 private:
  std::size_t begin_;
  std::size_t end_;
  std::size_t high_water_ = 0;
  std::map<std::size_t, std::size_t> taken_; // offset -> end
};

} // namespace tessera::nn::two_d
