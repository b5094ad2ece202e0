#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/json/parse.h"

#include "models/data/json_tokenizer/normalizer.h"

namespace tessera::data {

/// One of the "added_tokens" of a tokenizer.json.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool lstrip = false; // takes the white space before it
  bool rstrip = false; // and behind it
  bool normalized = false; // is looked for in the normalized text
  bool special = false; // is left out when ids become text
};

/// Throws: ConfigError that begins with `place`: single_word, or a key that is not known.
std::vector<AddedToken> read_added_tokens(const OrderedJson& json, const std::string& place);

/// Finds tokens in a text: the leftmost token first, and the longest of several that begin there.
/// Threads: any.
class AddedTokenFinder {
 public:
  struct Piece {
    std::string_view text;
    std::int32_t id = -1; // -1: text between tokens
  };

  /// Takes the tokens whose key "normalized" has this value. If it is true, their own texts are
  /// normalized as well.
  AddedTokenFinder(
      const std::vector<AddedToken>& tokens,
      bool normalized,
      const Normalizer& normalizer);

  /// Divides the text into pieces, which together are the text.
  std::vector<Piece> split(std::string_view text) const;

 private:
  const AddedToken* longest_at(std::string_view text) const;

  std::vector<AddedToken> tokens_; // with what is looked for as content
  std::array<std::vector<std::size_t>, 256> by_first_byte_; // the longest first
};

} // namespace tessera::data
