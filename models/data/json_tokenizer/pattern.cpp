#include "models/data/json_tokenizer/pattern.h"

#include <cctype>

#include <unicode/uregex.h>
#include <unicode/ustring.h>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"

#include "models/data/json_tokenizer/unicode.h"

namespace tessera::data {

namespace {

// Units: ten thousand steps of ICU's engine for one match, so the same on every machine. Patterns
// of tokenizers take a handful of steps; one that tries everything out ends in an error.
constexpr std::int32_t kMostSteps = 1000;

std::u16string to_utf16(std::string_view text) {
  std::u16string wide;
  wide.reserve(text.size());
  for_each_character(text, [&](Character character, std::string_view) {
    if (character > 0xFFFF) {
      wide += static_cast<char16_t>(0xD7C0 + (character >> 10));
      wide += static_cast<char16_t>(0xDC00 | (character & 0x3FF));
    } else {
      wide += static_cast<char16_t>(character);
    }
  });
  return wide;
}

/// Reads an expression construct by construct: what two engines might read in two ways is refused.
class Translator {
 public:
  Translator(const std::string& regex, const std::string& place) : regex_(regex), place_(place) {}

  std::string translate() {
    while (at_ < regex_.size()) {
      step();
    }
    if (in_class_) {
      refuse("a class without its end");
    }
    return made_;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw ConfigError(
        str(place_,
            " is the regular expression ",
            quoted_briefly(regex_),
            ", in which ",
            what,
            " is not implemented"));
  }
  bool next_is(std::string_view text) const {
    return std::string_view(regex_).substr(at_).starts_with(text);
  }
  void copy(std::size_t count) {
    made_ += regex_.substr(at_, count);
    at_ += count;
  }

  void step() {
    const char c = regex_[at_];
    if (c == '\\') {
      escape();
    } else if (in_class_) {
      in_class(c);
    } else if (c == '[') {
      copy(1);
      in_class_ = true;
      if (next_is("^")) {
        copy(1);
      }
      if (next_is("]")) {
        refuse("']' at the beginning of a class");
      }
    } else if (c == '(') {
      group();
    } else if (c == '{') {
      counts();
    } else if (std::string_view("^$.]}").find(c) != std::string_view::npos) {
      refuse(str("'", c, "' outside of a class"));
    } else {
      copy(1);
    }
  }

  void in_class(char c) {
    if (c == '[' || next_is("&&") || next_is("--")) {
      refuse("a class inside a class");
    }
    in_class_ = c != ']';
    copy(1);
  }

  void escape() {
    if (at_ + 1 == regex_.size()) {
      refuse("a last '\\'");
    }
    const char c = regex_[at_ + 1];
    if (c == 's' || c == 'S') {
      made_ += c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
      at_ += 2;
    } else if (c == 'd' || c == 'D') {
      made_ += c == 'd' ? "\\p{Nd}" : "\\P{Nd}";
      at_ += 2;
    } else if (c == 'p' || c == 'P') {
      const auto end = regex_.find('}', at_);
      const std::string name = next_is(str("\\", c, "{")) && end != std::string::npos
                                   ? regex_.substr(at_ + 3, end - at_ - 3)
                                   : "";
      const bool known = !name.empty() && name.size() <= 2 &&
                         std::string_view("LMNPSZC").find(name[0]) != std::string_view::npos &&
                         (name.size() == 1 || std::islower(static_cast<unsigned char>(name[1])));
      if (!known) {
        refuse(str("'\\", c, "{", name, "}', no general category of Unicode,"));
      }
      copy(end + 1 - at_);
    } else if (
        std::string_view("rnt").find(c) != std::string_view::npos ||
        std::ispunct(static_cast<unsigned char>(c)) != 0) {
      copy(2);
    } else {
      refuse(str("'\\", c, "'"));
    }
  }

  void group() {
    if (!next_is("(?")) {
      copy(1);
      return;
    }
    for (const std::string_view known : {"(?:", "(?i:", "(?=", "(?!"}) {
      if (next_is(known)) {
        copy(known.size());
        return;
      }
    }
    refuse(quoted_briefly(regex_.substr(at_, 4)));
  }

  // "{2}", "{2,}", "{2,5}"
  void counts() {
    std::size_t end = at_ + 1;
    const auto digits = [&] {
      const std::size_t begin = end;
      while (end < regex_.size() && std::isdigit(static_cast<unsigned char>(regex_[end])) != 0) {
        ++end;
      }
      return end - begin;
    };
    const std::size_t first = digits();
    if (end < regex_.size() && regex_[end] == ',') {
      ++end;
      digits();
    }
    const bool whole = first > 0 && end < regex_.size() && regex_[end] == '}';
    const char after = end + 1 < regex_.size() ? regex_[end + 1] : ' ';
    if (!whole || after == '+' || after == '?' || after == '*') {
      refuse(str("'", regex_.substr(at_, 8), "'"));
    }
    copy(end + 1 - at_);
  }

  const std::string& regex_;
  const std::string& place_;
  std::string made_;
  std::size_t at_ = 0;
  bool in_class_ = false;
};

} // namespace

std::string to_icu_regex(const std::string& regex, const std::string& place) {
  return Translator(regex, place).translate();
}

void Pattern::Close::operator()(URegularExpression* expression) const {
  uregex_close(expression);
}

Pattern::Pattern(const std::string& regex, const std::string& place) : place_(place) {
  const std::u16string wide = to_utf16(to_icu_regex(regex, place));
  UErrorCode status = U_ZERO_ERROR;
  UParseError where;
  expression_.reset(
      uregex_open(wide.data(), static_cast<std::int32_t>(wide.size()), 0, &where, &status));
  if (U_FAILURE(status)) {
    throw ConfigError(
        str(place_,
            " is the regular expression ",
            quoted_briefly(regex),
            ", which ICU does not understand: ",
            u_errorName(status)));
  }
  uregex_setTimeLimit(expression_.get(), kMostSteps, &status);
  const std::u16string nothing;
  uregex_setText(expression_.get(), nothing.data(), 0, &status);
  if (uregex_matches(expression_.get(), 0, &status) != 0) {
    throw ConfigError(
        str(place_,
            " is the regular expression ",
            quoted_briefly(regex),
            ", which matches the empty text; this is not implemented"));
  }
}

Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

std::vector<std::pair<std::size_t, std::size_t>> Pattern::matches(std::string_view text) {
  text_ = to_utf16(text);
  UErrorCode status = U_ZERO_ERROR;
  uregex_setText(expression_.get(), text_.data(), static_cast<std::int32_t>(text_.size()), &status);
  std::vector<std::pair<std::size_t, std::size_t>> found;
  std::size_t wide = 0;
  std::size_t narrow = 0;
  // Places come in rising order, so one walk over the text translates them all.
  const auto to_bytes = [&](std::int32_t place) {
    while (wide < static_cast<std::size_t>(place)) {
      const auto first = static_cast<unsigned char>(text[narrow]);
      narrow += first < 0x80U ? 1 : first < 0xE0U ? 2 : first < 0xF0U ? 3 : 4;
      wide += first < 0xF0U ? 1 : 2;
    }
    return narrow;
  };
  while (U_SUCCESS(status) && uregex_findNext(expression_.get(), &status) != 0) {
    const auto begin = to_bytes(uregex_start(expression_.get(), 0, &status));
    const auto end = to_bytes(uregex_end(expression_.get(), 0, &status));
    found.emplace_back(begin, end);
  }
  if (U_FAILURE(status)) {
    throw ConfigError(str(place_, ": ICU gives up on a text: ", u_errorName(status)));
  }
  return found;
}

} // namespace tessera::data
