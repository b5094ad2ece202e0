#include "models/data/json_tokenizer/make_word_model.h"

#include "tessera/base/error.h"

#include "models/data/json_tokenizer/bpe.h"
#include "models/data/json_tokenizer/fields.h"
#include "models/data/json_tokenizer/word_piece.h"

namespace tessera::data {

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
