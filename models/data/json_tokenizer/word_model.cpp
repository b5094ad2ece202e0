#include "models/data/json_tokenizer/word_model.h"

#include <unordered_set>

#include "tessera/base/error.h"

namespace tessera::data {

Vocabulary read_vocabulary(const OrderedJson& json, const std::string& place) {
  if (!json.is_object() || json.empty()) {
    throw ConfigError(str(place, " is ", briefly(json), ", expected an object of ids"));
  }
  Vocabulary vocabulary;
  std::unordered_set<std::int64_t> seen;
  for (const auto& item : json.items()) {
    const auto& id = item.value();
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= std::uint64_t{kMostIds}) {
      throw ConfigError(
          str(place,
              ": the id of ",
              quoted_briefly(item.key()),
              " is ",
              briefly(id),
              ", expected 0 to ",
              kMostIds - 1));
    }
    if (!seen.insert(id.get<std::int64_t>()).second) {
      throw ConfigError(str(
          place, ": the id ", one_line(id), " stands twice, also at ", quoted_briefly(item.key())));
    }
    vocabulary.emplace(item.key(), id.get<std::int32_t>());
  }
  return vocabulary;
}

} // namespace tessera::data
