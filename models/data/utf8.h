#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::data {

/// Where the first byte stands that is not part of valid UTF-8; npos when there is none.
std::size_t first_invalid_utf8(std::string_view text);

/// The text with U+FFFD for each run of bytes that is no character.
std::string with_replaced_invalid(std::string_view text);

} // namespace tessera::data
