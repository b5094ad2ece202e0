#include <cstring>

#include "tessera/base/error.h"

#include "models/data/document_index.h"
#include "models/data/sampler.h"
#include "models/data/token_file.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/scratch_file.h"

namespace tessera::fuzz {

namespace {

std::string index_of(const std::vector<std::uint64_t>& begins, std::uint64_t tokens) {
  const ScratchFile file("seed.documents");
  data::DocumentIndexWriter writer(file.path());
  for (const auto begin : begins) {
    writer.begin_at(begin);
  }
  writer.finish(tokens);
  return file.bytes();
}

std::string file_of(const std::vector<std::int32_t>& tokens, std::int64_t vocabulary) {
  const ScratchFile file("seed.tokens");
  data::write_token_file(file.path(), tokens, vocabulary);
  return file.bytes();
}

} // namespace

std::vector<std::string> seeds() {
  return {
      file_of({1, 2, 3, 4, 0, 399}, 400),
      file_of({5, 70000, 1}, 80000),
      index_of({0, 5, 9}, 12),
      data::to_json(data::SamplerState{3, 12345678901ULL})};
}

} // namespace tessera::fuzz

// A token file, an index of documents and the place in an epoch that a checkpoint keeps: the input
// is read as all of them, and a token file also without its checksum.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  static const fuzz::MemoryFile file;
  file.set(data, size);
  bool accepted = false;
  for (const bool verify : {true, false}) {
    try {
      const data::TokenDataset tokens(file.path(), verify);
      if (tokens.size() > size) {
        fuzz::broken("tokens lie inside their file");
      }
      std::vector<std::int64_t> all(tokens.size());
      tokens.copy(0, tokens.size(), all.data());
      accepted = true;
    } catch (const ConfigError&) {
      continue;
    }
  }
  try {
    const data::DocumentIndex documents(file.path());
    for (std::uint64_t i = 0; i < documents.documents(); ++i) {
      if (documents.begin_of(i) >= documents.tokens()) {
        fuzz::broken("documents begin at a token");
      }
    }
    accepted = true;
  } catch (const ConfigError&) {
    accepted = accepted || false;
  }
  try {
    const std::string text(reinterpret_cast<const char*>(data), size);
    const data::SamplerState state = data::sampler_state_from_json(text);
    const std::string written = data::to_json(state);
    if (data::to_json(data::sampler_state_from_json(written)) != written) {
      fuzz::broken("what was accepted is written as it was read");
    }
    accepted = true;
  } catch (const CheckpointError&) {
    accepted = accepted || false;
  }
  fuzz::count(accepted);
  return 0;
}
