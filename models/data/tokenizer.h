#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/data/tokenizer_model.h"

namespace tessera::data {

/// Text to token ids and back, as a file says: a SentencePiece model (sentencepiece_model.h), or
/// a tokenizer.json of Hugging Face (json_tokenizer/json_tokenizer.h).
///
/// Those that `tessera data prepare` trains are SentencePiece models that lose nothing: bytes that
/// no piece covers have tokens of their own, and so has the end of a line. Their ids: 0 unknown, 1
/// begin, 2 end of a document, 3 padding.
///
/// Threads: one at a time. Not collective.
class Tokenizer {
 public:
  /// Throws: ConfigError when the file is missing or of neither kind, or says something that is not
  /// implemented.
  explicit Tokenizer(const std::string& path);

  /// Makes a tokenizer from the bytes of its file, which messages call `name`.
  static Tokenizer from_bytes(std::string_view model, const std::string& name);

  /// Adds neither a begin nor an end token. With a tokenizer of `tessera data prepare`, valid UTF-8
  /// comes back unchanged from decode(encode(text)).
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// Throws: ConfigError for an id outside of the vocabulary.
  std::string decode(const std::vector<std::int32_t>& ids) const;

  /// One more than the largest id.
  std::int64_t vocab_size() const;
  /// The token that follows a document; -1: the tokenizer has none.
  std::int32_t end_of_document() const;

 private:
  explicit Tokenizer(std::unique_ptr<TokenizerModel> model);

  std::unique_ptr<TokenizerModel> model_;
};

/// Returns whether these bytes are meant to be a tokenizer.json: whether they begin with a brace.
bool is_json_tokenizer(std::string_view bytes);

} // namespace tessera::data
