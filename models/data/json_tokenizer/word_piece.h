#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/data/json_tokenizer/fields.h"
#include "models/data/json_tokenizer/word_model.h"

namespace tessera::data {

/// Takes the longest token that a word begins with, then of the rest, whose tokens have a prefix;
/// a word of which a part is no token, or that is too long, is unknown as a whole.
/// Source: Devlin et al. 2019, the code published with it.
class WordPiece : public WordModel {
 public:
  /// Throws: ConfigError for what is not implemented, or an unknown token that is no token.
  explicit WordPiece(Fields& fields);

  void encode(const std::string& word, std::vector<std::int32_t>& ids) override;

 private:
  std::string prefix_;
  std::size_t most_characters_;
  std::int32_t unknown_ = 0;
};

} // namespace tessera::data
