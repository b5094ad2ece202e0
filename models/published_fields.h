#pragma once

#include <map>
#include <set>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"

// What is common to the readers of config.json files. For .cpp files: it needs
// nlohmann-json.
namespace tessera::models {

using PublishedJson = nlohmann::ordered_json;

/// How the fields of one kind of model are understood.
struct PublishedForm {
  std::string model; // "a GPT-2"
  std::string example; // a field that it has
  /// Names of transformers -> names of options.
  std::map<std::string, std::string> options;
  /// Probabilities that are one here.
  std::set<std::string> dropouts;
  /// Fields that change the mathematics, and of which one value is implemented.
  /// null is that value too.
  std::map<std::string, PublishedJson> only_value;
};

/// Fields of every model type that change the mathematics, with the one value that
/// is implemented.
std::map<std::string, PublishedJson> values_of_all(const std::string& type);

/// Parses a config.json and hands it to `read`; every error begins with `origin`.
template <typename Read>
auto read_published(const std::string& text, const std::string& origin, Read read) {
  try {
    return read(parse_json(text, ""));
  } catch (const Error& error) {
    throw ConfigError(str(origin, ": ", error.what()));
  }
}

/// The options that a file says. `dropout` is among them only when all
/// probabilities are equal.
/// Throws: ConfigError that names a field, what was found and what to do.
PublishedJson options_of_fields(const PublishedJson& file, const PublishedForm& form);

/// Throws: ConfigError: the field, its value, and `advice`.
[[noreturn]] void
refuse_field(const std::string& key, const PublishedJson& found, const std::string& advice);

} // namespace tessera::models
