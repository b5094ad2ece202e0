#pragma once

#include <cstdio>
#include <string>

namespace tessera::cli {

/// Writes a growing text to a stream as soon as its characters are complete. A token may end inside
/// a character of UTF-8, whose bytes then wait for the next token.
/// Not collective. Threads: one at a time.
class TextStream {
 public:
  /// `name` is what messages call the stream.
  TextStream(std::FILE* out, std::string name) : out_(out), name_(std::move(name)) {}

  /// Writes what is new in `text`, which is the whole text so far. Throws: Error with the system's
  /// reason (a closed pipe, a full disk).
  void show(const std::string& text);
  /// Writes the remaining bytes, also of an incomplete character, and `ending`.
  void finish(const std::string& text, const std::string& ending);

 private:
  void write(const std::string& bytes);

  std::FILE* out_;
  std::string name_;
  std::string shown_;
};

} // namespace tessera::cli
