#include "tessera/config/strict_json.h"

#include "tessera/base/error.h"

namespace tessera::config {

namespace {

using nlohmann::json;

constexpr std::size_t kLongestQuote = 60;
constexpr std::size_t kLongestMessage = 300;
constexpr int kDeepest = 32;

// "[json.exception.parse_error.101] parse error at line 1, ..." without the
// library's own label, and short even when a token is megabytes long.
std::string cause_of(const json::exception& error) {
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

} // namespace

json strict_json(
    const std::string& text,
    const std::string& origin,
    Findings& findings) {
  std::vector<std::set<std::string>> seen; // keys of each open object
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kDeepest) {
      throw ConfigError(
          str(origin, ": nested deeper than ", kDeepest, " levels"));
    }
    if (event == json::parse_event_t::object_start) {
      seen.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      seen.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!seen.back().insert(key).second) {
        findings.add(str("the key ", quoted(key), " stands twice; keep one"));
      }
    }
    return true;
  };
  try {
    return json::parse(text, watch);
  } catch (const json::exception& error) {
    throw ConfigError(str(origin, ": not valid JSON: ", cause_of(error)));
  }
}

std::string quoted(const std::string& text) {
  // Cutting may split a UTF-8 sequence: `replace` makes that visible instead of
  // an exception.
  const json cut = text.size() > kLongestQuote
                       ? text.substr(0, kLongestQuote) + "..."
                       : text;
  return cut.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string describe(const json& value) {
  if (value.is_object()) {
    return "an object";
  }
  if (value.is_array()) {
    return "a list";
  }
  return value.is_string() ? quoted(value.get<std::string>()) : value.dump();
}

} // namespace tessera::config
