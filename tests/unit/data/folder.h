#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <zlib.h>

#include "tessera/base/error.h"

#include "models/data/files.h"

namespace tessera::data {

/// A folder for one test, removed with it.
class FolderTest : public testing::Test {
 protected:
  FolderTest() {
    std::string name = (std::filesystem::temp_directory_path() / "tessera-texts-XXXXXX").string();
    TESSERA_CHECK(mkdtemp(name.data()) != nullptr);
    folder_ = name;
  }
  ~FolderTest() override {
    std::filesystem::remove_all(folder_);
  }
  std::string path(const std::string& name) const {
    return (folder_ / name).string();
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

  std::filesystem::path folder_;
};

template <typename E = ConfigError, typename Function>
std::string message_of(Function function) {
  try {
    function();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

} // namespace tessera::data
