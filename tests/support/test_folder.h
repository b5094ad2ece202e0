#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "tessera/base/error.h"

/// What tests of files need, whatever namespace they are in.
namespace tessera::tests {

/// A fresh folder that is removed with this object.
class TestFolder {
 public:
  TestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tessera-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("a folder for the test cannot be made");
    }
    path_ = name;
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const {
    return path_;
  }
  std::string operator/(const std::string& name) const {
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

/// What the `E` says that `run` throws.
template <typename E = Error, typename Run>
std::string message_of(const Run& run) {
  try {
    run();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

} // namespace tessera::tests
