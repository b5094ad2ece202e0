#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/data/json_tokenizer/fields.h"
#include "models/data/json_tokenizer/word_model.h"

namespace tessera::data {

/// Divides a word into the longest token with which it begins, then the longest with which the rest
/// begins, and so on; tokens inside a word have a prefix. A word that is too long, or has a part
/// without a token, becomes the unknown token as a whole.
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
