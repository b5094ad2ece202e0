#pragma once

// For .cpp files that read JSON from outside; not installed, so that no public
// header needs nlohmann-json.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

namespace tessera {

/// Keeps the order of keys, so that files read as they were written.
using OrderedJson = nlohmann::ordered_json;

/// One line; bytes that are no UTF-8 become U+FFFD instead of an exception, since names come from
/// users' modules.
std::string one_line(const OrderedJson& json);

/// The same with line breaks and `indent` blanks a level.
std::string indented(const OrderedJson& json, int indent);

/// A text is no JSON, or none that this program reads. `what()` says why, and
/// in which line and column (both from 1, columns in bytes).
class JsonError : public Error {
 public:
  using Error::Error;
};

/// Limits of a text that comes from outside.
struct JsonRules {
  /// Objects and lists inside each other. Printing, copying and destroying a
  /// value recurse into it, so that depth is stack.
  int most_levels = 256;
  std::size_t most_bytes = std::size_t{1} << 30;
};

/// A key that stands twice in one object. JSON parsers keep one of the values
/// without a word.
struct RepeatedKey {
  std::string key;
  std::string first; // "line 1, column 2"
  std::string second;
};

/// Looks at a text before a parser does: cheap, no recursion, any bytes. At
/// most eight repeated keys are returned; what is wrong otherwise is left to
/// the parser.
/// Throws: JsonError for more levels or bytes than the rules allow.
std::vector<RepeatedKey> repeated_keys(std::string_view text, const JsonRules& rules = {});

/// `"ddp" stands twice in one object, at line 1, column 2 and at line 3, column 2; keep one`
std::string to_text(const RepeatedKey& repeated);

/// A text that people write by hand as plain JSON: comments (`// ...` to the
/// end of the line, `/* ... */`) and commas behind the last entry of an object
/// or a list become blanks, so that lines and columns stay what they were.
/// Throws: JsonError for a comment that does not end.
std::string without_comments(std::string text);

/// Returns the text of a JSON library's exception, without the library's own label, and
/// short even when a token is megabytes long.
std::string cause_of(const std::exception& error);

/// A value as it stands in a file, in one line, for messages: a long one is cut.
std::string briefly(const OrderedJson& json);

/// The text in quotes, cut short, whatever its bytes.
std::string quoted_briefly(std::string_view text);

/// Parses a text from outside, the one way in this program: bounded depth and
/// size, no key twice.
/// Throws: JsonError that begins with `place` (a file's name; "": no beginning).
template <typename Json = OrderedJson>
Json parse_json(std::string_view text, const std::string& place, const JsonRules& rules = {}) {
  const std::string start = place.empty() ? "" : place + ": ";
  try {
    const auto repeated = repeated_keys(text, rules);
    if (!repeated.empty()) {
      throw JsonError(to_text(repeated.front()));
    }
    return Json::parse(text);
  } catch (const JsonError& error) {
    throw JsonError(start + error.what());
  } catch (const typename Json::exception& error) {
    throw JsonError(str(start, "not valid JSON: ", cause_of(error)));
  }
}

} // namespace tessera
