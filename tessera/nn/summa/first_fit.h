#pragma once

#include <cstddef>
#include <map>

namespace tessera::nn::summa {

/// Allocates parts of the range [begin, end) of a memory by first fit. It sees offsets only.
class FirstFit {
 public:
  FirstFit(std::size_t begin, std::size_t end) : begin_(begin), end_(end) {}

  /// Returns the offset of `bytes` free bytes, a multiple of 64 if `begin` is one.
  /// Throws: ConfigError when no free range is as long.
  std::size_t take(std::size_t bytes);
  void give_back(std::size_t offset);
  /// Returns how many bytes from `begin` on were ever in use, gaps included.
  std::size_t high_water() const {
    return high_water_;
  }

 private:
  std::size_t begin_;
  std::size_t end_;
  std::size_t high_water_ = 0;
  std::map<std::size_t, std::size_t> taken_; // offset -> end
};

} // namespace tessera::nn::summa
