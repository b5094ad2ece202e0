#include "models/data/json_tokenizer/pre_tokenizer.h"

#include <memory>
#include <utility>

#include "tessera/base/error.h"

#include "models/data/json_tokenizer/pattern.h"
#include "models/data/json_tokenizer/unicode.h"

namespace tessera::data {

namespace {

constexpr const char* kKnownPreTokenizers =
    "ByteLevel, Split, BertPreTokenizer, WhitespaceSplit, Digits, Sequence";
// Source: Radford et al. 2019, the code published with it.
constexpr const char* kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

using Words = std::vector<std::string>;

enum class Found { kWord, kRemoved };

void add_word(Words& words, std::string_view word) {
  if (!word.empty()) {
    words.emplace_back(word);
  }
}

/// Cuts where `find` gives begin and end of matches, in order.
template <typename Find>
Words cut(const Words& words, Found matches, const Find& find) {
  Words made;
  for (const std::string& word : words) {
    const std::string_view text = word;
    std::size_t at = 0;
    for (const auto& [begin, end] : find(text)) {
      add_word(made, text.substr(at, begin - at));
      if (matches == Found::kWord) {
        add_word(made, text.substr(begin, end - begin));
      }
      at = end;
    }
    add_word(made, text.substr(at));
  }
  return made;
}

using Places = std::vector<std::pair<std::size_t, std::size_t>>;

/// Each character of a kind by itself; `together`: those beside each other as one.
template <typename Is>
Places places_of(std::string_view text, const Is& is, bool together) {
  Places places;
  std::size_t at = 0;
  for_each_character(text, [&](Character character, std::string_view bytes) {
    if (is(character)) {
      if (together && !places.empty() && places.back().second == at) {
        places.back().second += bytes.size();
      } else {
        places.emplace_back(at, at + bytes.size());
      }
    }
    at += bytes.size();
  });
  return places;
}

Words without_white_space(const Words& words) {
  return cut(words, Found::kRemoved, [](std::string_view text) {
    return places_of(text, is_white_space, false);
  });
}

Places places_of_text(std::string_view text, const std::string& wanted) {
  Places places;
  for (auto at = text.find(wanted); at != std::string_view::npos;
       at = text.find(wanted, at + wanted.size())) {
    places.emplace_back(at, at + wanted.size());
  }
  return places;
}

} // namespace

PreTokenizer::PreTokenizer(const OrderedJson& json, const std::string& place) {
  if (!json.is_null()) {
    add(json, place);
  }
}

void PreTokenizer::add_byte_level(Fields& fields) {
  if (fields.flag("add_prefix_space", true)) {
    steps_.emplace_back([](Words words) {
      for (std::string& word : words) {
        if (!word.starts_with(' ')) {
          word.insert(word.begin(), ' ');
        }
      }
      return words;
    });
  }
  if (fields.flag("use_regex", true)) {
    const auto pattern = std::make_shared<Pattern>(kGpt2Words, fields.place());
    steps_.emplace_back([pattern](const Words& words) {
      return cut(
          words, Found::kWord, [&](std::string_view text) { return pattern->matches(text); });
    });
  }
  fields.ignore("trim_offsets");
  byte_level_ = true;
}

void PreTokenizer::add_split(Fields& fields) {
  fields.must_be_unset("invert");
  const std::string behavior = fields.text("behavior");
  if (behavior != "Isolated" && behavior != "Removed") {
    fields.refuse("behavior", "Isolated, Removed");
  }
  const Found matches = behavior == "Isolated" ? Found::kWord : Found::kRemoved;
  Fields pattern(fields.value("pattern"), fields.place_of("pattern"));
  if (pattern.has("Regex")) {
    const auto regex = std::make_shared<Pattern>(pattern.text("Regex"), pattern.place_of("Regex"));
    steps_.emplace_back([regex, matches](const Words& words) {
      return cut(words, matches, [&](std::string_view text) { return regex->matches(text); });
    });
  } else {
    const std::string wanted = pattern.text("String");
    if (wanted.empty()) {
      pattern.refuse("String", "a text that is not empty");
    }
    steps_.emplace_back([wanted, matches](const Words& words) {
      return cut(
          words, matches, [&](std::string_view text) { return places_of_text(text, wanted); });
    });
  }
  pattern.done();
}

void PreTokenizer::add_digits(Fields& fields) {
  const bool together = !fields.flag("individual_digits", false);
  steps_.emplace_back([together](const Words& words) {
    return cut(words, Found::kWord, [&](std::string_view text) {
      return places_of(text, is_numeric, together);
    });
  });
}

void PreTokenizer::add(const OrderedJson& json, const std::string& place) {
  Fields fields(json, place);
  const std::string type = fields.text("type");
  if (byte_level_) {
    throw ConfigError(str(place, ": ", type, " stands behind ByteLevel, which is not implemented"));
  }
  if (type == "Sequence") {
    const OrderedJson& parts = fields.value("pretokenizers");
    if (!parts.is_array()) {
      fields.refuse("pretokenizers", "a list");
    }
    for (const OrderedJson& part : parts) {
      add(part, place);
    }
  } else if (type == "ByteLevel") {
    add_byte_level(fields);
  } else if (type == "Split") {
    add_split(fields);
  } else if (type == "Digits") {
    add_digits(fields);
  } else if (type == "WhitespaceSplit") {
    steps_.emplace_back(without_white_space);
  } else if (type == "BertPreTokenizer") {
    steps_.emplace_back(without_white_space);
    steps_.emplace_back([](const Words& words) {
      return cut(words, Found::kWord, [](std::string_view text) {
        return places_of(text, is_punctuation, false);
      });
    });
  } else {
    fields.refuse("type", kKnownPreTokenizers);
  }
  fields.done();
}

std::vector<std::string> PreTokenizer::apply(std::string text) {
  Words words;
  if (!text.empty()) {
    words.push_back(std::move(text));
  }
  for (const Step& step : steps_) {
    words = step(std::move(words));
  }
  return words;
}

} // namespace tessera::data
