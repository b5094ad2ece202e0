#pragma once

#include <fstream>
#include <sstream>
#include <string>

#include "tests/support/test_folder.h"

namespace tessera::cli {

using Folder = tests::TestFolder;

inline void write(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

inline std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

} // namespace tessera::cli
