#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <zlib.h>

#include "tessera/base/error.h"

#include "models/data/files.h"
#include "tests/support/test_folder.h"

namespace tessera::data {

/// A test with a folder of its own.
class FolderTest : public testing::Test {
 protected:
  std::string path(const std::string& name) const {
    return folder_ / name;
  }
  std::string made(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    write_file(path(name), content);
    return path(name);
  }
  std::string made_gz(const std::string& name, const std::string& content) const {
    gzFile file = gzopen(path(name).c_str(), "wb");
    TESSERA_CHECK(
        gzwrite(file, content.data(), static_cast<unsigned>(content.size())) ==
        static_cast<int>(content.size()));
    gzclose(file);
    return path(name);
  }

  tests::TestFolder folder_;
};

template <typename E = ConfigError, typename Run>
std::string message_of(const Run& run) {
  return tests::message_of<E>(run);
}

} // namespace tessera::data
