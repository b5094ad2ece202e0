#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace tessera::cli {

/// Returns whether two paths name the same file, also through links. The file need not exist yet.
inline bool same_file(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  return fs::equivalent(a, b, ignored) ||
         fs::weakly_canonical(a, ignored) == fs::weakly_canonical(b, ignored);
}

} // namespace tessera::cli
