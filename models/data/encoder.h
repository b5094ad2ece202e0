#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/data/input/documents.h"
#include "models/data/tokenizer.h"

namespace tessera::data {

/// Tokenizes sections on several threads, each with a tokenizer of its own.
/// Threads: one at a time may call it.
class Encoder {
 public:
  /// Makes the tokenizers from the bytes of a tokenizer's file, which messages call `name`.
  /// Throws: ConfigError of Tokenizer.
  Encoder(std::string_view model, const std::string& name, int threads);

  const Tokenizer& tokenizer() const {
    return tokenizers_.front();
  }
  /// Returns the ids of each section, in order, which do not depend on the number of threads.
  /// Throws: the tokenizer's error for the first section that has one.
  std::vector<std::vector<std::int32_t>> encode(const std::vector<Section>& sections) const;

 private:
  std::vector<Tokenizer> tokenizers_;
};

} // namespace tessera::data
