#include "models/data/tokenizer.h"

#include "tessera/base/error.h"
#include "tessera/base/files.h"

#include "models/data/json_tokenizer/json_tokenizer.h"
#include "models/data/sentencepiece_model.h"

namespace tessera::data {

Tokenizer::Tokenizer(std::unique_ptr<TokenizerModel> model) : model_(std::move(model)) {}
Tokenizer::Tokenizer(const std::string& path) : Tokenizer(from_bytes(read_file(path), path)) {}

Tokenizer Tokenizer::from_bytes(std::string_view model, const std::string& name) {
  return Tokenizer(
      is_json_tokenizer(model) ? make_json_tokenizer(model, name)
                               : make_sentencepiece_model(model, name));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  return model_->encode(text);
}

std::string Tokenizer::decode(const std::vector<std::int32_t>& ids) const {
  for (const auto id : ids) {
    if (id < 0 || id >= vocab_size()) {
      throw ConfigError(str("token id ", id, " is not one of the tokenizer's ", vocab_size()));
    }
  }
  return model_->decode(ids);
}

std::int64_t Tokenizer::vocab_size() const {
  return model_->vocab_size();
}

std::int32_t Tokenizer::end_of_document() const {
  return model_->end_of_document();
}

bool is_json_tokenizer(std::string_view bytes) {
  // A SentencePiece model begins with the byte 10.
  return bytes.starts_with('{');
}

} // namespace tessera::data
