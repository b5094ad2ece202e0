#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

/// Text to token ids and back, without loss: bytes that no piece covers have
/// tokens of their own, and so has the end of a line.
/// Ids: 0 unknown, 1 begin, 2 end of a document, 3 padding.
///
/// SentencePiece runs in a process of its own (the program tessera-tokenizer,
/// looked for beside this program, in the build folder, in PATH): Debian's
/// library exports the protobuf inside it, which cannot share a process with
/// libtorch's.
///
/// Threads: one at a time. Not collective.
class Tokenizer {
 public:
  /// Throws: ConfigError when the file is missing or not a SentencePiece model.
  explicit Tokenizer(const std::string& path);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// `name` stands in messages.
  static Tokenizer from_bytes(std::string_view model, const std::string& name);

  /// Valid UTF-8 comes back unchanged from decode(encode(text)).
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// Throws: ConfigError for an id outside of the vocabulary.
  std::string decode(const std::vector<std::int32_t>& ids) const;

  std::int64_t vocab_size() const;
  std::int32_t end_of_document() const;

 private:
  class Worker;
  explicit Tokenizer(std::unique_ptr<Worker> worker);

  std::unique_ptr<Worker> worker_;
  std::int32_t vocab_size_ = 0;
  std::int32_t end_of_document_ = 0;

  friend std::string train_tokenizer(std::string_view text, std::int64_t vocab_size);
};

/// Trains byte-pair encoding on the lines of a text; the same text gives the
/// same model. Returns the bytes of a SentencePiece model file.
/// Throws: ConfigError when the text is too small for `vocab_size`.
std::string train_tokenizer(std::string_view text, std::int64_t vocab_size);

} // namespace tessera::data
