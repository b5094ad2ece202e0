#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace tessera::cli {

/// Whether two paths lead to one file, also by links; a file that is not there yet counts.
inline bool same_file(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  return fs::equivalent(a, b, ignored) ||
         fs::weakly_canonical(a, ignored) == fs::weakly_canonical(b, ignored);
}

} // namespace tessera::cli
