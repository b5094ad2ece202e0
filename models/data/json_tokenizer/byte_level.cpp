#include "models/data/json_tokenizer/byte_level.h"

#include <array>

#include <unicode/utf8.h>

#include "models/data/json_tokenizer/unicode.h"

namespace tessera::data {

namespace {

constexpr Character kFirstOther = 0x100;
constexpr int kBytes = 256;

bool is_seen(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

struct Tables {
  Tables() {
    Character other = kFirstOther;
    byte_of.fill(-1);
    for (int byte = 0; byte < kBytes; ++byte) {
      const auto at = static_cast<std::size_t>(byte);
      character_of[at] = is_seen(byte) ? byte : other++;
      byte_of[static_cast<std::size_t>(character_of[at])] = byte;
    }
  }
  std::array<Character, kBytes> character_of{};
  std::array<int, 2 * kBytes> byte_of{};
};

const Tables& tables() {
  static const Tables made;
  return made;
}

} // namespace

std::string spelling_of_byte(unsigned char byte) {
  const Character character = tables().character_of[byte];
  std::array<char, 4> bytes{};
  int size = 0;
  U8_APPEND_UNSAFE(bytes.data(), size, character);
  return {bytes.data(), static_cast<std::size_t>(size)};
}

std::optional<std::string> bytes_spelled(std::string_view text) {
  std::string bytes;
  bool all = true;
  for_each_character(text, [&](Character character, std::string_view) {
    const bool inside =
        character >= 0 && static_cast<std::size_t>(character) < tables().byte_of.size();
    const int byte = inside ? tables().byte_of[static_cast<std::size_t>(character)] : -1;
    all = all && byte >= 0;
    bytes += static_cast<char>(byte);
  });
  return all ? std::optional(std::move(bytes)) : std::nullopt;
}

} // namespace tessera::data
