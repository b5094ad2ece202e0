#pragma once

#include <cstdio>
#include <string>

namespace tessera::cli {

/// Writes a text that grows to a stream as soon as its characters are whole.
/// A token may end inside a character: its bytes wait for the next one.
/// Not collective. Threads: one at a time.
class TextStream {
 public:
  /// `name` is the stream's, for messages.
  TextStream(std::FILE* out, std::string name) : out_(out), name_(std::move(name)) {}

  /// `text` is all so far. Throws: Error with the system's reason (a closed
  /// pipe, a full disk).
  void show(const std::string& text);
  /// The rest, whole or not, and `ending`.
  void finish(const std::string& text, const std::string& ending);

 private:
  void write(const std::string& bytes);

  std::FILE* out_;
  std::string name_;
  std::string shown_;
};

} // namespace tessera::cli
