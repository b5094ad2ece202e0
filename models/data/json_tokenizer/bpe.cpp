#include "models/data/json_tokenizer/bpe.h"

#include <queue>
#include <tuple>

#include "tessera/base/error.h"

#include "models/data/json_tokenizer/byte_level.h"

namespace tessera::data {

namespace {

constexpr std::size_t kMostKnownWords = 1U << 17;
constexpr std::size_t kLongestKnownWord = 64; // bytes

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32U | static_cast<std::uint32_t>(right);
}

struct Symbol {
  std::int32_t id = 0;
  std::int32_t before = -1;
  std::int32_t behind = -1;
  bool gone = false;
};

} // namespace

Bpe::Bpe(Fields& fields) {
  fields.must_be_unset("dropout");
  fields.must_be_unset("continuing_subword_prefix");
  fields.must_be_unset("end_of_word_suffix");
  fields.must_be_unset("byte_fallback");
  // Every byte has a token, so nothing is unknown.
  fields.ignore("unk_token");
  fields.ignore("fuse_unk");
  const bool ignore_merges = fields.flag("ignore_merges", false);
  vocabulary_ = read_vocabulary(fields.value("vocab"), fields.place_of("vocab"));
  for (std::size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    const std::string spelling = spelling_of_byte(static_cast<unsigned char>(byte));
    const auto found = vocabulary_.find(spelling);
    if (found == vocabulary_.end()) {
      throw ConfigError(
          str(fields.place_of("vocab"),
              " has no token for the byte ",
              byte,
              " (\"",
              spelling,
              "\"): text with it would be lost"));
    }
    byte_ids_[byte] = found->second;
  }
  read_merges(fields.value("merges"), fields.place_of("merges"));
  if (ignore_merges) {
    for (const auto& [token, id] : vocabulary_) {
      if (const auto bytes = bytes_spelled(token)) {
        whole_.emplace(*bytes, id);
      }
    }
  }
  fields.done();
}

void Bpe::read_merges(const OrderedJson& merges, const std::string& place) {
  if (!merges.is_array()) {
    throw ConfigError(str(place, " is ", briefly(merges), ", expected a list of pairs"));
  }
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const OrderedJson& merge = merges[rank];
    const auto refuse = [&](const std::string& why) {
      throw ConfigError(str(place, "[", rank, "] is ", briefly(merge), ", ", why));
    };
    std::string left;
    std::string right;
    if (merge.is_string()) {
      // No token of bytes has a blank: that byte is spelled otherwise.
      const auto text = merge.get<std::string>();
      const auto blank = text.find(' ');
      left = text.substr(0, blank);
      right = blank == std::string::npos ? "" : text.substr(blank + 1);
    } else if (
        merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    }
    if (left.empty() || right.empty()) {
      refuse("expected two tokens");
    }
    const auto first = vocabulary_.find(left);
    const auto second = vocabulary_.find(right);
    const auto both = vocabulary_.find(left + right);
    if (first == vocabulary_.end() || second == vocabulary_.end() || both == vocabulary_.end()) {
      refuse("and not both tokens and what they make are in vocab");
    }
    const bool fresh = merges_
                           .emplace(
                               key_of(first->second, second->second),
                               Merge{static_cast<std::int32_t>(rank), both->second})
                           .second;
    if (!fresh) {
      refuse("which stands there before");
    }
  }
}

const Bpe::Merge* Bpe::find(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find(key_of(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

std::vector<std::int32_t> Bpe::merged(const std::string& word) const {
  using Candidate = std::tuple<std::int32_t, std::int32_t, std::int32_t>; // rank, place, new id
  std::vector<Symbol> symbols(word.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto consider = [&](std::int32_t place) {
    if (place < 0 || symbols[static_cast<std::size_t>(place)].behind < 0) {
      return;
    }
    const Symbol& left = symbols[static_cast<std::size_t>(place)];
    const Symbol& right = symbols[static_cast<std::size_t>(left.behind)];
    if (const Merge* merge = find(left.id, right.id)) {
      queue.emplace(merge->rank, place, merge->id);
    }
  };
  const auto count = static_cast<std::int32_t>(word.size());
  for (std::int32_t i = 0; i < count; ++i) {
    symbols[static_cast<std::size_t>(i)] = {
        byte_ids_[static_cast<unsigned char>(word[static_cast<std::size_t>(i)])],
        i - 1,
        i + 1 < count ? i + 1 : -1};
  }
  for (std::int32_t i = 0; i < count; ++i) {
    consider(i);
  }
  while (!queue.empty()) {
    const auto [rank, place, id] = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<std::size_t>(place)];
    if (left.gone || left.behind < 0) {
      continue;
    }
    Symbol& right = symbols[static_cast<std::size_t>(left.behind)];
    // One of the two may have been merged with another neighbour since.
    const Merge* merge = find(left.id, right.id);
    if (merge == nullptr || merge->id != id || merge->rank != rank) {
      continue;
    }
    left.id = id;
    left.behind = right.behind;
    right.gone = true;
    if (left.behind >= 0) {
      symbols[static_cast<std::size_t>(left.behind)].before = place;
    }
    consider(left.before);
    consider(place);
  }
  std::vector<std::int32_t> ids;
  for (std::int32_t at = 0; at >= 0 && at < count;
       at = symbols[static_cast<std::size_t>(at)].behind) {
    ids.push_back(symbols[static_cast<std::size_t>(at)].id);
  }
  return ids;
}

void Bpe::encode(const std::string& word, std::vector<std::int32_t>& ids) {
  if (const auto whole = whole_.find(word); whole != whole_.end()) {
    ids.push_back(whole->second);
    return;
  }
  if (word.size() > kLongestKnownWord) {
    const auto made = merged(word);
    ids.insert(ids.end(), made.begin(), made.end());
    return;
  }
  auto found = known_.find(word);
  if (found == known_.end()) {
    if (known_.size() >= kMostKnownWords) {
      known_.clear();
    }
    found = known_.emplace(word, merged(word)).first;
  }
  ids.insert(ids.end(), found->second.begin(), found->second.end());
}

} // namespace tessera::data
