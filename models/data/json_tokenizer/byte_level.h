#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessera::data {

/// Byte-level vocabularies spell every byte as a character that can be seen: 33 to 126, 161 to 172
/// and 174 to 255 as the character of that number, the others in order as U+0100 and on.
/// Source: Radford et al. 2019, section 2.2 and the code published with it.
std::string spelling_of_byte(unsigned char byte);

/// Returns the bytes that a text of such characters spells; nothing when it has another character.
std::optional<std::string> bytes_spelled(std::string_view text);

} // namespace tessera::data
