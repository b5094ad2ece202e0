#include "tessera/base/error.h"

#include "models/data/input/token_source.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scratch_file.h"

namespace tessera::fuzz {

namespace {

constexpr std::int64_t kVocabulary = 1000;

std::string npy(const std::string& type, const std::string& shape, const std::string& data) {
  std::string text = "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
  text.resize(64 - 10 - 1 + 64, ' ');
  text += '\n';
  std::string header("\x93NUMPY\1\0", 8);
  header += static_cast<char>(text.size());
  header += '\0';
  return header + text + data;
}

} // namespace

std::vector<std::string> seeds() {
  return {
      npy("<u2", "(3,)", std::string("\1\0\2\0\3\0", 6)),
      npy(">i4", "(1,)", std::string("\0\0\1\2", 4)),
      npy("|u1", "(2,)", "ab"),
      npy("<i8", "(1,)", std::string("\7\0\0\0\0\0\0\0", 8))};
}

} // namespace tessera::fuzz

// A NumPy file of tokens; the input is read as raw numbers too.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  static const fuzz::ScratchFile npy("input.npy");
  static const fuzz::ScratchFile raw("input.bin");
  npy.set(data, size);
  raw.set(data, size);
  for (const auto& [file, bytes] : {std::make_pair(&raw, 2), std::make_pair(&npy, 0)}) {
    bool accepted = false;
    try {
      data::TokenSource source(file->path(), bytes, fuzz::kVocabulary);
      std::size_t count = 0;
      for (auto tokens = source.next(7); !tokens.empty(); tokens = source.next(7)) {
        count += tokens.size();
        for (const auto token : tokens) {
          if (token < 0 || token >= fuzz::kVocabulary) {
            fuzz::broken("tokens are in the vocabulary");
          }
        }
      }
      if (count == 0 || count > size) {
        fuzz::broken("tokens lie inside their file");
      }
      accepted = true;
    } catch (const ConfigError&) {
      accepted = false;
    }
    if (bytes == 0) {
      fuzz::count(accepted);
    }
  }
  return 0;
}
