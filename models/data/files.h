#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::data {

constexpr std::uint64_t kHashSeed = 14695981039346656037ULL;

/// FNV-1a of bytes, continued from `seed`: equal on every machine, guards
/// against torn files and changed inputs, not against malice.
std::uint64_t hash_bytes(const void* bytes, std::size_t size, std::uint64_t seed = kHashSeed);
std::uint64_t hash_text(std::string_view text, std::uint64_t seed = kHashSeed);

/// The whole file. Throws: ConfigError with the path and the system's reason.
std::string read_file(const std::string& path);

/// Writes through a temporary file beside it: the file appears whole or not at
/// all. Throws: ConfigError as above (a full disk among others).
void write_file(const std::string& path, std::string_view content);

} // namespace tessera::data
