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

  /// `name` stands in messages.
  static Tokenizer from_bytes(std::string_view model, const std::string& name);

  /// No begin and no end is added. With a tokenizer of `tessera data prepare`, valid UTF-8 comes
  /// back unchanged from decode(encode(text)).
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// Throws: ConfigError for an id outside of the vocabulary.
  std::string decode(const std::vector<std::int32_t>& ids) const;

  /// One more than the largest id.
  std::int64_t vocab_size() const;
  /// What stands behind a document; -1: the tokenizer has no such token.
  std::int32_t end_of_document() const;

 private:
  explicit Tokenizer(std::unique_ptr<TokenizerModel> model);

  std::unique_ptr<TokenizerModel> model_;
};

/// Whether these bytes are to be a tokenizer.json: they begin with a brace.
bool is_json_tokenizer(std::string_view bytes);

/// Trains byte-pair encoding on the lines of a text; the same text gives the
/// same model. Returns the bytes of a SentencePiece model file.
/// Throws: ConfigError when the text is too small for `vocab_size`.
std::string train_tokenizer(std::string_view text, std::int64_t vocab_size);

} // namespace tessera::data
