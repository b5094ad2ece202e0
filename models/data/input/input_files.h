#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::data {

/// The files that a list of files and folders names: a file as it is, of a folder all files in it
/// and below, sorted by the bytes of their paths, without those whose name or whose folder's name
/// begins with a dot.
/// Throws: ConfigError for a path that is not there or has no file, and for a file that is named
/// twice.
std::vector<std::string> input_files(const std::vector<std::string>& paths);

/// Together. Units: bytes on disk.
std::uint64_t total_bytes(const std::vector<std::string>& files);

} // namespace tessera::data
