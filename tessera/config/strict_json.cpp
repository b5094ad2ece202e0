#include "tessera/config/strict_json.h"

#include <limits>

#include <nlohmann/json.hpp>

namespace tessera::config {

namespace {

using nlohmann::json;

constexpr int kDeepest = 32;
constexpr double kTwoTo63 = 9223372036854775808.0;

} // namespace

JsonFaults parse_strictly(const std::string& text, json& into) {
  JsonFaults faults;
  try {
    faults.repeated = repeated_keys(text, {.most_levels = kDeepest});
    into = json::parse(text);
  } catch (const JsonError& error) {
    faults.invalid = error.what();
  } catch (const json::exception& error) {
    faults.invalid = "not valid JSON: " + cause_of(error);
  }
  return faults;
}

std::string quoted(const std::string& text) {
  return quoted_briefly(text);
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
