#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace tessera::data {

/// Numbers in a file: how they lie there.
struct TokenLayout {
  std::uint64_t offset_bytes = 0; // of the first one
  std::uint64_t count = 0;
  std::uint32_t token_bytes = 0; // 1, 2, 4 or 8
  bool is_signed = false;
  bool big_endian = false;
};

/// What the header of a NumPy file (.npy, versions 1 to 3) says. `start` is its beginning, at
/// least kMostNpyHeader bytes of it or all; `size_bytes` the size of the whole.
/// Throws: ConfigError that begins with `path`: no NumPy file, another type than whole numbers,
/// more or less than one dimension, another size than the shape says.
TokenLayout npy_layout(const std::string& start, std::uint64_t size_bytes, const std::string& path);

constexpr std::size_t kMostNpyHeader = 65536;

/// The tokens of a file, taken as they are: a .npy array of one dimension, or numbers one after
/// the other in little-endian order.
/// Threads: one at a time.
class TokenSource {
 public:
  /// `raw_bytes` are those of a number in a file that is not called .npy: 2 or 4; 0: not said.
  /// Throws: ConfigError that names the file and what is wrong with it.
  TokenSource(const std::string& path, int raw_bytes, std::int64_t vocab_size);

  /// The next tokens, at most `most`; none at the end.
  /// Throws: ConfigError with file and place for one outside of the vocabulary.
  std::vector<std::int32_t> next(std::size_t most);
  std::uint64_t position_bytes() const;

 private:
  std::string path_;
  std::ifstream file_;
  TokenLayout layout_;
  std::int64_t vocab_size_;
  std::uint64_t read_ = 0; // tokens
};

} // namespace tessera::data
