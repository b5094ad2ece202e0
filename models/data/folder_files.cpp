#include "models/data/folder_files.h"

#include <filesystem>

namespace tessera::data {

std::string tokenizer_path(const std::string& folder) {
  const std::filesystem::path in(folder);
  for (const char* name : {kTokenizerFile, kJsonTokenizerFile, kInteractionsFile}) {
    if (std::filesystem::exists(in / name)) {
      return (in / name).string();
    }
  }
  return (in / kTokenizerFile).string();
}

} // namespace tessera::data
