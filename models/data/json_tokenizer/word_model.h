#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/base/json/parse.h"

namespace tessera::data {

/// Token -> id, as a tokenizer.json says it.
using Vocabulary = std::unordered_map<std::string, std::int32_t>;

/// Throws: ConfigError that begins with `place` when it is no object of ids, or an id stands twice
/// or is beyond 2^20.
Vocabulary read_vocabulary(const OrderedJson& json, const std::string& place);

constexpr std::int64_t kMostIds = std::int64_t{1} << 20;

/// The "model" of a tokenizer.json.
/// Threads: one at a time.
class WordModel {
 public:
  virtual ~WordModel() = default;
  /// Adds the ids of a word.
  virtual void encode(const std::string& word, std::vector<std::int32_t>& ids) = 0;
  /// As the file spells them.
  const Vocabulary& vocabulary() const {
    return vocabulary_;
  }

 protected:
  Vocabulary vocabulary_;
};

/// Words are bytes (`byte_level`) or texts. Throws: ConfigError that begins with `place` for what
/// is not implemented.
std::unique_ptr<WordModel>
make_word_model(const OrderedJson& json, const std::string& place, bool byte_level);

} // namespace tessera::data
