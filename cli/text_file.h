#pragma once

#include <string>

namespace tessera::cli {

/// Replaces a file by `text`, whole or not at all: it is written beside the file and renamed, so a
/// full disk leaves what was there. What is no regular file (/dev/stdout, a pipe) is written to.
/// Throws: Error naming the file and the reason.
void write_text_file(const std::string& path, const std::string& text);

} // namespace tessera::cli
