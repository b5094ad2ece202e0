#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "models/data/json_tokenizer/fields.h"
#include "models/data/json_tokenizer/word_model.h"

namespace tessera::data {

/// Byte-pair encoding of bytes. It merges the pair of neighbouring tokens that stands first in the
/// list of merges, the leftmost one where the pair occurs several times, until no pair is in the
/// list.
/// Source: Sennrich et al. 2016, section 3.2; bytes: Radford et al. 2019, section 2.2.
class Bpe : public WordModel {
 public:
  /// Throws: ConfigError for what is not implemented, for a byte without a token, and for a merge
  /// whose parts or result are no tokens.
  explicit Bpe(Fields& fields);

  void encode(const std::string& word, std::vector<std::int32_t>& ids) override;

 private:
  struct Merge {
    std::int32_t rank = 0;
    std::int32_t id = 0;
  };

  void read_merges(const OrderedJson& merges, const std::string& place);
  std::vector<std::int32_t> merged(const std::string& word) const;
  const Merge* find(std::int32_t left, std::int32_t right) const;

  std::array<std::int32_t, 256> byte_ids_{};
  std::unordered_map<std::string, std::int32_t> whole_; // with ignore_merges: by bytes
  std::unordered_map<std::uint64_t, Merge> merges_;
  std::unordered_map<std::string, std::vector<std::int32_t>> known_; // words seen before
};

} // namespace tessera::data
