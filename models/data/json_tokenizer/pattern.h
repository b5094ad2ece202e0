#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct URegularExpression;

namespace tessera::data {

/// A regular expression of a tokenizer.json, matched by ICU. Those files use Oniguruma's syntax, so
/// only what means the same in both is accepted: characters, classes with \s, \S, \d, \D, \p{L} and
/// the like (general categories), groups, (?:), (?i:), (?=), (?!), |, and quantifiers. Threads: one
/// at a time.
class Pattern {
 public:
  /// Messages begin with `place`. Throws: ConfigError that names what is not accepted.
  Pattern(const std::string& regex, const std::string& place);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  /// Returns begin and end of each match in valid UTF-8, in order. Units: bytes.
  /// Throws: ConfigError when ICU reports an error.
  std::vector<std::pair<std::size_t, std::size_t>> matches(std::string_view text);

 private:
  struct Close {
    void operator()(URegularExpression* expression) const;
  };

  std::string place_;
  std::unique_ptr<URegularExpression, Close> expression_;
  std::u16string text_;
};

/// Returns the expression in ICU's syntax. Throws: ConfigError that begins with `place`.
std::string to_icu_regex(const std::string& regex, const std::string& place);

} // namespace tessera::data
