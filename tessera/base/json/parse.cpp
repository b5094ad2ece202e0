#include "tessera/base/json/parse.h"

#include <algorithm>
#include <deque>
#include <unordered_map>

namespace tessera {

namespace {

using nlohmann::json;

constexpr std::size_t kMostRepeated = 8;
constexpr std::size_t kLongestMessage = 300;
constexpr std::size_t kLongestQuote = 60;

std::string place_of(std::string_view text, std::size_t at) {
  const std::string_view before = text.substr(0, at);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const auto start = before.rfind('\n');
  const auto column = start == std::string_view::npos ? at + 1 : at - start;
  return str("line ", line, ", column ", column);
}

// Returns the position behind a string whose opening quote is at `at`.
std::size_t end_of_string(std::string_view text, std::size_t at) {
  for (++at; at < text.size(); ++at) {
    if (text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      return at + 1;
    }
  }
  return text.size();
}

// The keys of one open object or list.
class Level {
 public:
  bool object = false;
  bool key_next = false;

  void open(bool is_object) {
    object = is_object;
    key_next = is_object;
    keys_.clear();
    index_.clear();
  }

  /// Returns the position of an earlier equal key, or npos. `key` must outlive the level.
  std::size_t enter(std::string_view key, std::size_t at) {
    if (index_.empty()) {
      for (const auto& [other, place] : keys_) {
        if (other == key) {
          return place;
        }
      }
      keys_.emplace_back(key, at);
      if (keys_.size() > kFew) {
        index_.insert(keys_.begin(), keys_.end());
      }
      return std::string_view::npos;
    }
    const auto [found, fresh] = index_.emplace(key, at);
    return fresh ? std::string_view::npos : found->second;
  }

 private:
  // Most objects have a few keys: a list of those is searched faster.
  static constexpr std::size_t kFew = 16;
  std::vector<std::pair<std::string_view, std::size_t>> keys_;
  std::unordered_map<std::string_view, std::size_t> index_;
};

// "\u0061" and "a" are one key.
std::string decoded(std::string_view quoted) {
  const json value = json::parse(quoted, nullptr, false);
  return value.is_string() ? value.get<std::string>() : std::string(quoted);
}

} // namespace

std::string one_line(const OrderedJson& value) {
  return indented(value, -1);
}

std::string indented(const OrderedJson& value, int indent) {
  return value.dump(indent, ' ', false, OrderedJson::error_handler_t::replace);
}

std::vector<RepeatedKey> repeated_keys(std::string_view text, const JsonRules& rules) {
  if (text.size() > rules.most_bytes) {
    throw JsonError(
        str("has ", text.size(), " bytes, more than the ", rules.most_bytes, " that are read"));
  }
  std::vector<RepeatedKey> repeated;
  std::deque<std::string> spelled; // keys with escapes, as they are meant
  std::vector<Level> levels; // kept when they close, for their memory
  std::size_t open = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    switch (text[at]) {
      case '{':
      case '[':
        if (open == static_cast<std::size_t>(rules.most_levels)) {
          throw JsonError(
              str("nested deeper than ", rules.most_levels, " levels at ", place_of(text, at)));
        }
        if (open == levels.size()) {
          levels.emplace_back();
        }
        levels[open++].open(text[at] == '{');
        break;
      case '}':
      case ']':
        open -= open > 0 ? 1 : 0;
        break;
      case ',':
        if (open > 0) {
          levels[open - 1].key_next = levels[open - 1].object;
        }
        break;
      case '"': {
        const std::size_t end = end_of_string(text, at);
        if (open > 0 && levels[open - 1].key_next) {
          levels[open - 1].key_next = false;
          std::string_view key = text.substr(at, end - at);
          if (key.find('\\') != std::string_view::npos) {
            key = spelled.emplace_back(decoded(key));
          } else {
            key = key.substr(1, key.size() > 1 ? key.size() - 2 : 0);
          }
          const std::size_t before = levels[open - 1].enter(key, at);
          if (before != std::string_view::npos && repeated.size() < kMostRepeated) {
            repeated.push_back({std::string(key), place_of(text, before), place_of(text, at)});
          }
        }
        at = end - 1;
        break;
      }
      default:
        break;
    }
  }
  return repeated;
}

std::string to_text(const RepeatedKey& repeated) {
  return str(
      quoted_briefly(repeated.key),
      ": stands twice in one object, at ",
      repeated.first,
      " and at ",
      repeated.second,
      "; keep one");
}

std::string without_comments(std::string text) {
  const auto blank = [&](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) {
      text[i] = text[i] == '\n' ? '\n' : ' ';
    }
  };
  constexpr std::size_t kNone = std::string::npos;
  std::size_t comma = kNone; // the last sign, where it is a comma behind an entry
  char last = '\0';
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char sign = text[at];
    const char next = at + 1 < text.size() ? text[at + 1] : '\0';
    if (sign == '/' && (next == '/' || next == '*')) {
      const std::size_t end = text.find(next == '/' ? "\n" : "*/", at + 2);
      if (end == kNone && next == '*') {
        throw JsonError(str("the comment at ", place_of(text, at), " does not end; write */"));
      }
      const std::size_t behind = end == kNone ? text.size() : end + (next == '*' ? 2 : 0);
      blank(at, behind);
      at = behind - 1;
      continue;
    }
    if (sign == ' ' || sign == '\t' || sign == '\n' || sign == '\r') {
      continue;
    }
    if ((sign == '}' || sign == ']') && comma != kNone) {
      text[comma] = ' ';
    }
    // "[,]" stays an error.
    const bool behind_entry = last != '\0' && last != ',' && last != '{' && last != '[';
    comma = sign == ',' && behind_entry ? at : kNone;
    last = sign;
    if (sign == '"') {
      at = end_of_string(text, at) - 1;
    }
  }
  return text;
}

std::string cause_of(const std::exception& error) {
  std::string text = error.what();
  const auto label = text.find("] ");
  if (text.starts_with("[json") && label != std::string::npos) {
    text.erase(0, label + 2);
  }
  if (text.size() > kLongestMessage) {
    text.resize(kLongestMessage);
    text += "...";
  }
  return text;
}

std::string briefly(const OrderedJson& json) {
  std::string text = one_line(json);
  if (text.size() > kLongestQuote) {
    std::size_t end = kLongestQuote;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
      --end; // not inside a character of UTF-8
    }
    text = text.substr(0, end) + "...";
  }
  return text;
}

std::string quoted_briefly(std::string_view text) {
  // Cutting may split a UTF-8 sequence: `replace` makes that visible instead of
  // an exception.
  const json cut = text.size() > kLongestQuote ? std::string(text.substr(0, kLongestQuote)) + "..."
                                               : std::string(text);
  return cut.dump(-1, ' ', false, json::error_handler_t::replace);
}

} // namespace tessera
