#include "models/data/json_tokenizer/normalizer.h"

#include <array>
#include <string_view>
#include <utility>

#include "models/data/json_tokenizer/fields.h"
#include "models/data/json_tokenizer/unicode.h"

namespace tessera::data {

namespace {

constexpr const char* kKnownNormalizers =
    "BertNormalizer, Lowercase, NFC, NFD, NFKC, NFKD, StripAccents, Sequence";
constexpr Character kReplacement = 0xFFFD;

constexpr std::array<std::pair<const char*, UnicodeForm>, 4> kForms{
    {{"NFC", UnicodeForm::kNfc},
     {"NFD", UnicodeForm::kNfd},
     {"NFKC", UnicodeForm::kNfkc},
     {"NFKD", UnicodeForm::kNfkd}}};

// The blocks that the library of these files counts, the third last with its own beginning.
constexpr std::array<std::pair<Character, Character>, 8> kChinese{
    {{0x4E00, 0x9FFF},
     {0x3400, 0x4DBF},
     {0x20000, 0x2A6DF},
     {0x2A700, 0x2B73F},
     {0x2B740, 0x2B81F},
     {0x2B920, 0x2CEAF},
     {0xF900, 0xFAFF},
     {0x2F800, 0x2FA1F}}};

bool is_chinese(Character character) {
  for (const auto& [first, last] : kChinese) {
    if (character >= first && character <= last) {
      return true;
    }
  }
  return false;
}

bool is_line_or_tab(Character character) {
  return character == '\t' || character == '\n' || character == '\r';
}

std::string clean(const std::string& text) {
  std::string made;
  for_each_character(text, [&](Character character, std::string_view bytes) {
    if (is_line_or_tab(character)) {
      made += ' ';
    } else if (character != kReplacement && !is_other(character)) {
      made += is_white_space(character) ? " " : bytes;
    }
  });
  return made;
}

std::string with_chinese_apart(const std::string& text) {
  std::string made;
  for_each_character(text, [&](Character character, std::string_view bytes) {
    if (is_chinese(character)) {
      made += ' ';
      made += bytes;
      made += ' ';
    } else {
      made += bytes;
    }
  });
  return made;
}

std::string without_nonspacing_marks(const std::string& text) {
  std::string made;
  for_each_character(text, [&](Character character, std::string_view bytes) {
    if (!is_nonspacing_mark(character)) {
      made += bytes;
    }
  });
  return made;
}

} // namespace

Normalizer::Normalizer(const OrderedJson& json, const std::string& place) {
  if (!json.is_null()) {
    add(json, place);
  }
}

void Normalizer::add_bert(Fields& fields) {
  const bool lowercase = fields.flag("lowercase", true);
  if (fields.flag("clean_text", true)) {
    steps_.emplace_back(clean);
  }
  if (fields.flag("handle_chinese_chars", true)) {
    steps_.emplace_back(with_chinese_apart);
  }
  // Not said: as lowercase.
  if (fields.maybe_flag("strip_accents").value_or(lowercase)) {
    steps_.emplace_back([](const std::string& text) {
      return without_nonspacing_marks(to_form(text, UnicodeForm::kNfd));
    });
  }
  if (lowercase) {
    steps_.emplace_back([](const std::string& text) { return to_lower(text); });
  }
}

void Normalizer::add(const OrderedJson& json, const std::string& place) {
  Fields fields(json, place);
  const std::string type = fields.text("type");
  bool known = true;
  if (type == "Sequence") {
    const OrderedJson& parts = fields.value("normalizers");
    if (!parts.is_array()) {
      fields.refuse("normalizers", "a list");
    }
    for (const OrderedJson& part : parts) {
      add(part, place);
    }
  } else if (type == "BertNormalizer") {
    add_bert(fields);
  } else if (type == "Lowercase") {
    steps_.emplace_back([](const std::string& text) { return to_lower(text); });
  } else if (type == "StripAccents") {
    // Of the text as it is: a character with its accent in one stays.
    steps_.emplace_back(without_nonspacing_marks);
  } else {
    known = false;
    for (const auto& [name, form] : kForms) {
      if (type == name) {
        steps_.emplace_back([form = form](const std::string& text) { return to_form(text, form); });
        known = true;
      }
    }
  }
  if (!known) {
    fields.refuse("type", kKnownNormalizers);
  }
  fields.done();
}

std::string Normalizer::apply(std::string text) const {
  for (const Step& step : steps_) {
    text = step(text);
  }
  return text;
}

} // namespace tessera::data
