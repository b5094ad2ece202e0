#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/data/input/documents.h"
#include "models/data/tokenizer.h"

namespace tessera::data {

/// Tokenizes sections on several threads, each with a tokenizer of its own.
/// Threads: one at a time calls it.
class Encoder {
 public:
  /// Of the bytes of a tokenizer; `name` stands in messages. Throws: ConfigError of Tokenizer.
  Encoder(std::string_view model, const std::string& name, int threads);

  const Tokenizer& tokenizer() const {
    return tokenizers_.front();
  }
  /// The ids of each section, in order: the same with any number of threads.
  /// Throws: what the tokenizer throws, for the first section that it throws for.
  std::vector<std::vector<std::int32_t>> encode(const std::vector<Section>& sections) const;

 private:
  std::vector<Tokenizer> tokenizers_;
};

} // namespace tessera::data
