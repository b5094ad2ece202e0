#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/base/json/parse.h"

#include "models/data/json_tokenizer/fields.h"

namespace tessera::data {

/// The "pre_tokenizer" of a tokenizer.json: none, ByteLevel, Split (behaviors Isolated and
/// Removed), BertPreTokenizer, WhitespaceSplit, Digits, or a Sequence of them in which ByteLevel is
/// the last.
/// Threads: one at a time.
class PreTokenizer {
 public:
  /// Throws: ConfigError that begins with `place` for what is not implemented.
  PreTokenizer(const OrderedJson& json, const std::string& place);

  /// Divides valid UTF-8 into words. With ByteLevel these are plain bytes, not the characters that
  /// spell them.
  std::vector<std::string> apply(std::string text);
  /// Whether words are bytes, not texts.
  bool byte_level() const {
    return byte_level_;
  }

 private:
  using Words = std::vector<std::string>;
  using Step = std::function<Words(Words)>;

  void add(const OrderedJson& json, const std::string& place);
  void add_byte_level(Fields& fields);
  void add_split(Fields& fields);
  void add_digits(Fields& fields);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

} // namespace tessera::data
