#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

/// The part of a Tokenizer that differs between the kinds of tokenizer files.
/// Threads: one at a time.
class TokenizerModel {
 public:
  virtual ~TokenizerModel() = default;

  virtual std::vector<std::int32_t> encode(std::string_view text) = 0;
  /// The ids must be in the vocabulary.
  virtual std::string decode(const std::vector<std::int32_t>& ids) = 0;
  /// One more than the largest id.
  virtual std::int64_t vocab_size() const = 0;
  /// -1: the tokenizer has none.
  virtual std::int32_t end_of_document() const = 0;
};

} // namespace tessera::data
