#pragma once

#include <map>
#include <set>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"

// What the readers of config.json files share. It is included by .cpp files only, since it needs
// nlohmann-json.
namespace tessera::models {

using PublishedJson = nlohmann::ordered_json;

/// The meaning of the fields of one kind of model.
struct PublishedForm {
  std::string model; // "a GPT-2"
  std::string example; // a field that it has
  /// The name of an option by its name in transformers.
  std::map<std::string, std::string> options;
  /// Probabilities that are one option here.
  std::set<std::string> dropouts;
  /// Fields that change the mathematics, with the one value that is implemented; null counts as
  /// that value.
  std::map<std::string, PublishedJson> only_value;
};

/// Fields of every model type that change the mathematics, with the one value that
/// is implemented.
std::map<std::string, PublishedJson> values_of_all(const std::string& type);

/// Parses a config.json and calls `read` with it; every error begins with `origin`.
template <typename Read>
auto read_published(const std::string& text, const std::string& origin, Read read) {
  try {
    return read(parse_json(text, ""));
  } catch (const Error& error) {
    throw ConfigError(str(origin, ": ", error.what()));
  }
}

/// Returns the options that a file sets. `dropout` is among them only when all
/// probabilities are equal.
/// Throws: ConfigError that names a field, what was found and what to do.
PublishedJson options_of_fields(const PublishedJson& file, const PublishedForm& form);

/// Throws: ConfigError with the field, its value, and `advice`.
[[noreturn]] void
refuse_field(const std::string& key, const PublishedJson& found, const std::string& advice);

} // namespace tessera::models
