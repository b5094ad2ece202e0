#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::data {

/// Writes through a temporary file beside it: the file appears whole or not at
/// all. Throws: ConfigError as above (a full disk among others).
void write_file(const std::string& path, std::string_view content);

} // namespace tessera::data
