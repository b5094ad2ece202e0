#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "models/data/input/byte_source.h"

namespace tessera::data {

/// Lines of a text file, checked to be UTF-8 without NUL.
/// Threads: one at a time.
class LineReader {
 public:
  /// A line of more than `most_bytes` comes in pieces of about so many, cut between characters.
  /// Throws: ConfigError of ByteSource.
  LineReader(const std::string& path, std::size_t most_bytes);

  /// The next line or piece with its '\n', which the last one may lack; valid until the next call.
  /// False at the end.
  /// Throws: ConfigError with file and line for bytes that are no UTF-8 and for a NUL byte.
  bool next(std::string_view& line);
  /// Of what next() returned last, from 1.
  std::uint64_t number() const {
    return number_;
  }
  /// "FILE, line N"
  std::string place() const;
  const ByteSource& source() const {
    return source_;
  }

 private:
  void fill();
  void check(std::string_view line) const;

  ByteSource source_;
  std::size_t most_bytes_;
  std::string buffer_;
  std::size_t begin_ = 0; // of what was not returned yet
  std::uint64_t number_ = 1;
  bool line_ended_ = false; // by what was returned last
  bool ended_ = false; // the source
};

} // namespace tessera::data
