#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/base/json/parse.h"

namespace tessera::data {

/// The ids of tokens, which are spelled as in the tokenizer.json.
using Vocabulary = std::unordered_map<std::string, std::int32_t>;

/// Reads the ids of a tokenizer.json. Throws: ConfigError that begins with `place` when it is no
/// object of ids, an id occurs twice, or one is 2^20 or more.
Vocabulary read_vocabulary(const OrderedJson& json, const std::string& place);

constexpr std::int64_t kMostIds = std::int64_t{1} << 20;

/// The "model" of a tokenizer.json.
/// Threads: one at a time.
class WordModel {
 public:
  virtual ~WordModel() = default;
  /// Appends the ids of a word.
  virtual void encode(const std::string& word, std::vector<std::int32_t>& ids) = 0;
  /// The tokens, as the file spells them.
  const Vocabulary& vocabulary() const {
    return vocabulary_;
  }

 protected:
  Vocabulary vocabulary_;
};

} // namespace tessera::data
