#include "tessera/config/strict_json.h"

#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

namespace tessera::config {

namespace {

using nlohmann::json;

constexpr std::size_t kLongestQuote = 60;
constexpr std::size_t kLongestMessage = 300;
constexpr int kDeepest = 32;
constexpr double kTwoTo63 = 9223372036854775808.0;

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

JsonFaults parse_strictly(const std::string& text, json& into) {
  struct TooDeep {};
  JsonFaults faults;
  std::vector<std::set<std::string>> seen; // keys of each open object
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kDeepest) {
      throw TooDeep();
    }
    if (event == json::parse_event_t::object_start) {
      seen.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      seen.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!seen.back().insert(key).second) {
        faults.repeated.push_back(key);
      }
    }
    return true;
  };
  try {
    into = json::parse(text, watch);
  } catch (const TooDeep&) {
    faults.invalid = str("nested deeper than ", kDeepest, " levels");
  } catch (const json::exception& error) {
    faults.invalid = "not valid JSON: " + cause_of(error);
  }
  return faults;
}

std::string quoted(const std::string& text) {
  // Cutting may split a UTF-8 sequence: `replace` makes that visible instead of
  // an exception.
  const json cut = text.size() > kLongestQuote ? text.substr(0, kLongestQuote) + "..." : text;
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

bool to_integer(const json& value, std::int64_t& into) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    into = static_cast<std::int64_t>(number);
    return number <= std::numeric_limits<std::int64_t>::max();
  }
  if (value.is_number_integer()) {
    into = value.get<std::int64_t>();
    return true;
  }
  // 5e8 is how the documentation itself writes bucket sizes.
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (number >= -kTwoTo63 && number < kTwoTo63) {
      into = static_cast<std::int64_t>(number);
      return static_cast<double>(into) == number;
    }
  }
  return false;
}

bool to_integer_map(const json& value, std::map<std::string, int>& into) {
  if (!value.is_object()) {
    return false;
  }
  for (const auto& [path, entry] : value.items()) {
    std::int64_t number = 0;
    if (!to_integer(entry, number) || number < std::numeric_limits<int>::min() ||
        number > std::numeric_limits<int>::max()) {
      return false;
    }
    into[path] = static_cast<int>(number);
  }
  return true;
}

} // namespace tessera::config
