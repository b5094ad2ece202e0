#include "models/data/json_tokenizer/word_piece.h"

#include "tessera/base/error.h"

#include "models/data/json_tokenizer/unicode.h"

namespace tessera::data {

WordPiece::WordPiece(Fields& fields)
    : prefix_(fields.text("continuing_subword_prefix", "##")),
      most_characters_(static_cast<std::size_t>(fields.number("max_input_chars_per_word", 100))) {
  vocabulary_ = read_vocabulary(fields.value("vocab"), fields.place_of("vocab"));
  const std::string unknown = fields.text("unk_token", "[UNK]");
  const auto found = vocabulary_.find(unknown);
  if (found == vocabulary_.end()) {
    throw ConfigError(
        str(fields.place_of("unk_token"), " is ", quoted_briefly(unknown), ", which vocab lacks"));
  }
  unknown_ = found->second;
  fields.done();
}

void WordPiece::encode(const std::string& word, std::vector<std::int32_t>& ids) {
  const std::size_t before = ids.size();
  if (count_characters(word) > most_characters_) {
    ids.push_back(unknown_);
    return;
  }
  for (std::size_t begin = 0; begin < word.size();) {
    std::size_t end = word.size();
    auto found = vocabulary_.end();
    for (; end > begin; --end) {
      if (end < word.size() && (static_cast<unsigned char>(word[end]) & 0xC0U) == 0x80U) {
        continue; // inside a character
      }
      found = vocabulary_.find((begin > 0 ? prefix_ : "") + word.substr(begin, end - begin));
      if (found != vocabulary_.end()) {
        break;
      }
    }
    if (found == vocabulary_.end()) {
      ids.resize(before);
      ids.push_back(unknown_);
      return;
    }
    ids.push_back(found->second);
    begin = end;
  }
}

} // namespace tessera::data
