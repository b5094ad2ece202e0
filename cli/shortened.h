#pragma once

#include <cctype>
#include <string>

#include "tessera/base/error.h"

namespace tessera::cli {

/// Returns a text as messages show it: of one that is longer than `most` bytes the first 200 and
/// its length.
inline std::string shortened(const std::string& text, std::size_t most = 200) {
  if (text.size() <= most) {
    return text;
  }
  std::size_t end = 200;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
    --end; // not inside a character of UTF-8
  }
  return str(text.substr(0, end), "... (", text.size(), " bytes)");
}

/// Shortens the words of a message that are longer than any path may be: values of a user's, which
/// the message quotes.
inline std::string with_short_words(const std::string& message) {
  constexpr std::size_t kLongestPath = 4096;
  std::string shown;
  std::string word;
  for (const char letter : message) {
    if (std::isspace(static_cast<unsigned char>(letter)) == 0) {
      word += letter;
    } else {
      shown += shortened(word, kLongestPath) + letter;
      word.clear();
    }
  }
  return shown + shortened(word, kLongestPath);
}

} // namespace tessera::cli
