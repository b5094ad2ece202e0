#pragma once

#include <cstdio>
#include <string>

namespace tessera::cli {

/// Returns what printf writes, at most 255 bytes.
std::string formatted(const char* format, auto... values) {
  char text[256];
  std::snprintf(text, sizeof(text), format, values...);
  return text;
}

/// The same and the end of the line.
std::string formatted_line(const char* format, auto... values) {
  return formatted(format, values...) + "\n";
}

} // namespace tessera::cli
