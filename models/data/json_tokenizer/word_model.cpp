#include "models/data/json_tokenizer/word_model.h"

#include <unordered_set>

#include "tessera/base/error.h"

#include "models/data/json_tokenizer/bpe.h"
#include "models/data/json_tokenizer/fields.h"
#include "models/data/json_tokenizer/word_piece.h"

namespace tessera::data {

Vocabulary read_vocabulary(const OrderedJson& json, const std::string& place) {
  if (!json.is_object() || json.empty()) {
    throw ConfigError(str(place, " is ", briefly(json), ", expected an object of ids"));
  }
  Vocabulary vocabulary;
  std::unordered_set<std::int64_t> seen;
  for (const auto& item : json.items()) {
    const auto& id = item.value();
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= std::uint64_t{kMostIds}) {
      throw ConfigError(
          str(place,
              ": the id of ",
              quoted_briefly(item.key()),
              " is ",
              briefly(id),
              ", expected 0 to ",
              kMostIds - 1));
    }
    if (!seen.insert(id.get<std::int64_t>()).second) {
      throw ConfigError(str(
          place, ": the id ", one_line(id), " stands twice, also at ", quoted_briefly(item.key())));
    }
    vocabulary.emplace(item.key(), id.get<std::int32_t>());
  }
  return vocabulary;
}

std::unique_ptr<WordModel>
make_word_model(const OrderedJson& json, const std::string& place, bool byte_level) {
  Fields fields(json, place);
  std::string type = fields.text("type", "");
  if (type.empty()) {
    // Files of the first versions do not say it.
    type = fields.has("merges") ? "BPE" : fields.has("max_input_chars_per_word") ? "WordPiece" : "";
  }
  if (type == "BPE") {
    if (!byte_level) {
      throw ConfigError(
          str(place,
              ".type is \"BPE\" and the pre_tokenizer has no ByteLevel; implemented is byte-level "
              "BPE alone"));
    }
    return std::make_unique<Bpe>(fields);
  }
  if (type == "WordPiece") {
    if (byte_level) {
      throw ConfigError(
          str(place,
              ".type is \"WordPiece\" and the pre_tokenizer has ByteLevel, which is not "
              "implemented together"));
    }
    return std::make_unique<WordPiece>(fields);
  }
  fields.refuse("type", "BPE, WordPiece");
}

} // namespace tessera::data
