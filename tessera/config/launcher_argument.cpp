#include <cstring>
#include <optional>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"
#include "tessera/config/launched_values.h"

namespace tessera::config {

namespace {

/// The entries of "a=1,b=[1,2],c=\"x,y\"".
std::vector<std::string> entries_of(const std::string& text) {
  std::vector<std::string> entries(1);
  int depth = 0;
  bool quoted = false;
  for (const char c : text) {
    quoted = quoted != (c == '"');
    depth += !quoted && (c == '[' || c == '{') ? 1 : 0;
    depth -= !quoted && (c == ']' || c == '}') ? 1 : 0;
    if (c == ',' && depth == 0 && !quoted) {
      entries.emplace_back();
    } else {
      entries.back() += c;
    }
  }
  return entries;
}

/// JSON where the text is such (Python's True and False as well), else the text.
OrderedJson value_of(const std::string& text) {
  if (text == "True" || text == "False") {
    return text == "True";
  }
  const OrderedJson parsed = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  return parsed.is_discarded() ? OrderedJson(text) : parsed;
}

std::string object_of(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || text[first] == '{') {
    return text;
  }
  // Written by hand, so that a key that stands twice reaches the reader, which refuses it.
  std::string object = "{";
  for (const std::string& entry : entries_of(text)) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw ConfigError(
          str(kLauncherArgument,
              ": found \"",
              entry,
              "\"; write key=value, with commas between several"));
    }
    object +=
        str(object.size() > 1 ? "," : "",
            OrderedJson(entry.substr(0, equals)).dump(),
            ":",
            value_of(entry.substr(equals + 1)).dump());
  }
  return object + "}";
}

} // namespace

Launched take_launcher_argument(const Config& given, int& argc, char** argv) {
  std::optional<std::string> said;
  const auto take = [&](const char* value) {
    if (value == nullptr) {
      throw ConfigError(str(kLauncherArgument, " has no value; write key=value,key=value"));
    }
    if (said) {
      throw ConfigError(str(kLauncherArgument, " is given twice; join the two with a comma"));
    }
    said = value;
  };
  const std::string with_value = str(kLauncherArgument, "=");
  int kept = 0;
  for (int i = 0; i < argc; ++i) {
    if (i > 0 && std::strcmp(argv[i], kLauncherArgument) == 0) {
      take(i + 1 < argc ? argv[i + 1] : nullptr);
      ++i;
    } else if (i > 0 && std::string(argv[i]).rfind(with_value, 0) == 0) {
      take(argv[i] + with_value.size());
    } else {
      argv[kept++] = argv[i];
    }
  }
  if (kept < argc) {
    argv[kept] = nullptr;
    argc = kept;
  }
  return said ? with_values_of(given, object_of(*said), kLauncherArgument) : Launched{given, {}};
}

} // namespace tessera::config
