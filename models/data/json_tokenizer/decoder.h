#pragma once

#include <string>
#include <vector>

#include "tessera/base/json/parse.h"

namespace tessera::data {

/// The "decoder" of a tokenizer.json: none (which puts a blank between two tokens), ByteLevel or
/// WordPiece.
/// Threads: any.
class TokenDecoder {
 public:
  /// Throws: ConfigError that begins with `place` for what is not implemented.
  TokenDecoder(const OrderedJson& json, const std::string& place);

  /// Returns valid UTF-8, in which bytes that are no character have become U+FFFD.
  std::string text_of(const std::vector<std::string>& tokens) const;

 private:
  enum class Kind { kNone, kByteLevel, kWordPiece };

  Kind kind_ = Kind::kNone;
  std::string prefix_;
  bool cleanup_ = false;
};

} // namespace tessera::data
