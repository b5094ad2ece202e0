#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/base/json/parse.h"

namespace tessera::data {

/// The "normalizer" of a tokenizer.json: none, BertNormalizer, Lowercase, NFC, NFD, NFKC, NFKD,
/// StripAccents, or a Sequence of them.
/// Threads: any.
class Normalizer {
 public:
  /// Throws: ConfigError that begins with `place` for what is not implemented.
  Normalizer(const OrderedJson& json, const std::string& place);

  /// Returns the normalized form of a text, which must be valid UTF-8.
  std::string apply(std::string text) const;

 private:
  using Step = std::function<std::string(const std::string&)>;

  void add(const OrderedJson& json, const std::string& place);
  void add_bert(class Fields& fields);

  std::vector<Step> steps_;
};

} // namespace tessera::data
