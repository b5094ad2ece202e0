#include "models/data/utf8.h"

#include <cstdint>

#include <unicode/utf8.h>

namespace tessera::data {

std::size_t first_invalid_utf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  const auto size = static_cast<std::int64_t>(text.size());
  for (std::int64_t at = 0; at < size;) {
    const std::int64_t begin = at;
    UChar32 character = 0;
    U8_NEXT(bytes, at, size, character);
    if (character < 0) {
      return static_cast<std::size_t>(begin);
    }
  }
  return std::string_view::npos;
}

std::string with_replaced_invalid(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const std::size_t wrong = first_invalid_utf8(text);
    valid += text.substr(0, wrong);
    if (wrong == std::string_view::npos) {
      break;
    }
    text.remove_prefix(wrong);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
    std::int64_t at = 0;
    UChar32 character = 0;
    U8_NEXT(bytes, at, static_cast<std::int64_t>(text.size()), character);
    valid += "\xEF\xBF\xBD";
    text.remove_prefix(static_cast<std::size_t>(at));
  }
  return valid;
}

} // namespace tessera::data
