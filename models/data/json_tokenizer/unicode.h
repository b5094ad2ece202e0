#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <unicode/utf8.h>

namespace tessera::data {

/// A character of Unicode.
using Character = std::int32_t;

/// Calls `take(character, bytes of it)` for each character of valid UTF-8.
template <typename Take>
void for_each_character(std::string_view text, const Take& take) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  const auto size = static_cast<std::int64_t>(text.size());
  for (std::int64_t at = 0; at < size;) {
    const std::int64_t begin = at;
    Character character = 0;
    U8_NEXT(bytes, at, size, character);
    take(
        character,
        text.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(at - begin)));
  }
}

std::size_t count_characters(std::string_view text);

/// The property White_Space.
bool is_white_space(Character character);
/// General category P, or one of the other marks of ASCII ($+<=>^`|~).
bool is_punctuation(Character character);
/// General category N.
bool is_numeric(Character character);
/// General category C: control, format, unassigned, private use.
bool is_other(Character character);
/// General category Mn.
bool is_nonspacing_mark(Character character);

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

std::string to_form(const std::string& text, UnicodeForm form);
/// Converts each character by itself, without regard to its neighbours.
std::string to_lower(std::string_view text);

} // namespace tessera::data
