#include <zlib.h>

#include "tessera/base/error.h"

#include "models/data/input/documents.h"
#include "models/data/utf8.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scratch_file.h"

namespace tessera::fuzz {

namespace {

constexpr const char* kLines =
    "{\"text\": \"one\\ntwo \\u00e4\", \"id\": 1}\n\n{\"text\": \"\"}\r\n{\"text\": \"three\"}";

std::string compressed(const std::string& text) {
  const ScratchFile file("seed.gz");
  gzFile gz = gzopen(file.path().c_str(), "wb");
  if (gz == nullptr ||
      gzwrite(gz, text.data(), static_cast<unsigned>(text.size())) !=
          static_cast<int>(text.size()) ||
      gzclose(gz) != Z_OK) {
    broken("a seed can be compressed");
  }
  std::string bytes(4096, '\0');
  std::FILE* read = std::fopen(file.path().c_str(), "rb");
  bytes.resize(std::fread(bytes.data(), 1, bytes.size(), read));
  std::fclose(read);
  return bytes;
}

bool reads(const ScratchFile& file) {
  try {
    const auto documents = data::documents_in({file.path()}, "text");
    bool open = false;
    for (data::Section section; documents->next(section);) {
      if (section.begins == open || section.text.empty()) {
        broken("a document is open or not, and no section is empty");
      }
      if (data::first_invalid_utf8(section.text) != std::string::npos ||
          section.text.find('\0') != std::string::npos) {
        broken("a section is UTF-8 without NUL");
      }
      open = !section.ends;
    }
    if (open) {
      broken("every document ends");
    }
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

} // namespace

std::vector<std::string> seeds() {
  return {kLines, "plain text\r\nof two lines", compressed(kLines), compressed("plain\n")};
}

} // namespace tessera::fuzz

// A file of text, read as JSON lines and as plain text, each decompressed when it is gzip.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  static const fuzz::ScratchFile lines("input.jsonl");
  static const fuzz::ScratchFile plain("input.txt");
  lines.set(data, size);
  plain.set(data, size);
  const bool as_lines = fuzz::reads(lines);
  const bool as_plain = fuzz::reads(plain);
  if (as_lines && !as_plain) {
    fuzz::broken("JSON lines are plain text");
  }
  fuzz::count(as_plain);
  return 0;
}
