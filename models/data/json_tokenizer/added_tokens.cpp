#include "models/data/json_tokenizer/added_tokens.h"

#include <algorithm>

#include "tessera/base/error.h"

#include "models/data/json_tokenizer/fields.h"
#include "models/data/json_tokenizer/unicode.h"
#include "models/data/json_tokenizer/word_model.h"

namespace tessera::data {

namespace {

std::size_t white_space_at_start(std::string_view text) {
  std::size_t size = 0;
  bool going_on = true;
  for_each_character(text, [&](Character character, std::string_view bytes) {
    going_on = going_on && is_white_space(character);
    size += going_on ? bytes.size() : 0;
  });
  return size;
}

/// Where the white space begins that a text ends with.
std::size_t white_space_at_end(std::string_view text) {
  std::size_t at = 0;
  std::size_t begin = 0;
  for_each_character(text, [&](Character character, std::string_view bytes) {
    at += bytes.size();
    begin = is_white_space(character) ? begin : at;
  });
  return begin;
}

} // namespace

std::vector<AddedToken> read_added_tokens(const OrderedJson& json, const std::string& place) {
  std::vector<AddedToken> tokens;
  if (json.is_null()) {
    return tokens;
  }
  if (!json.is_array()) {
    throw ConfigError(str(place, " is ", briefly(json), ", expected a list"));
  }
  for (const OrderedJson& item : json) {
    Fields fields(item, str(place, "[", tokens.size(), "]"));
    AddedToken token;
    if (!fields.has("id")) {
      fields.refuse("id", "an id");
    }
    const std::int64_t id = fields.number("id", 0);
    if (id >= kMostIds) {
      fields.refuse("id", str("0 to ", kMostIds - 1));
    }
    token.id = static_cast<std::int32_t>(id);
    token.content = fields.text("content");
    if (token.content.empty()) {
      fields.refuse("content", "a text that is not empty");
    }
    token.lstrip = fields.flag("lstrip", false);
    token.rstrip = fields.flag("rstrip", false);
    token.special = fields.flag("special", false);
    token.normalized = fields.flag("normalized", !token.special);
    fields.must_be_unset("single_word");
    fields.done();
    tokens.push_back(std::move(token));
  }
  return tokens;
}

AddedTokenFinder::AddedTokenFinder(
    const std::vector<AddedToken>& tokens,
    bool normalized,
    const Normalizer& normalizer) {
  for (const AddedToken& token : tokens) {
    if (token.normalized == normalized) {
      tokens_.push_back(token);
      if (normalized) {
        tokens_.back().content = normalizer.apply(token.content);
      }
    }
  }
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (!tokens_[i].content.empty()) {
      by_first_byte_[static_cast<unsigned char>(tokens_[i].content[0])].push_back(i);
    }
  }
  for (auto& places : by_first_byte_) {
    std::stable_sort(places.begin(), places.end(), [&](std::size_t a, std::size_t b) {
      return tokens_[a].content.size() > tokens_[b].content.size();
    });
  }
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text) const {
  for (const std::size_t i : by_first_byte_[static_cast<unsigned char>(text[0])]) {
    if (text.starts_with(tokens_[i].content)) {
      return &tokens_[i];
    }
  }
  return nullptr;
}

std::vector<AddedTokenFinder::Piece> AddedTokenFinder::split(std::string_view text) const {
  std::vector<Piece> pieces;
  std::size_t done = 0; // what is in pieces
  const auto add = [&](std::size_t end, std::int32_t id) {
    if (end > done) {
      pieces.push_back({text.substr(done, end - done), id});
      done = end;
    }
  };
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* token = longest_at(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    const std::size_t end = at + token->content.size();
    const std::size_t begin =
        token->lstrip ? std::max(white_space_at_end(text.substr(0, at)), done) : at;
    const std::size_t stop = token->rstrip ? end + white_space_at_start(text.substr(end)) : end;
    add(begin, -1);
    add(stop, token->id);
    at = end;
  }
  add(text.size(), -1);
  return pieces;
}

} // namespace tessera::data
