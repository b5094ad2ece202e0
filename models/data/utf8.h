#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::data {

/// Returns the position of the first byte that is not part of valid UTF-8; npos when there is none.
std::size_t first_invalid_utf8(std::string_view text);

/// Returns the text with U+FFFD in place of each run of bytes that is no character.
std::string with_replaced_invalid(std::string_view text);

} // namespace tessera::data
