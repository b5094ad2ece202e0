#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace tessera::cli {

/// The line of a terminal that shows how far something is, drawn anew in its place.
/// Threads: one at a time.
class RedrawnLine {
 public:
  explicit RedrawnLine(std::FILE* stream) : stream_(stream) {}
  ~RedrawnLine() = default;
  RedrawnLine(const RedrawnLine&) = delete;
  RedrawnLine& operator=(const RedrawnLine&) = delete;

  void show(const std::string& text);
  /// Takes the line away, if there is one.
  void clear();
  /// Leaves the line as it is; what follows begins below it.
  void keep();

 private:
  std::FILE* stream_;
  bool drawn_ = false;
};

/// "[######......]" of `width` places.
std::string progress_bar(std::int64_t done, std::int64_t total, int width);

} // namespace tessera::cli
