#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/config/config.h"

namespace tessera::config {

/// The value of one key, whatever its type; monostate when it is not said.
using Value = std::variant<
    std::monostate,
    bool,
    std::int64_t,
    double,
    std::string,
    std::map<std::string, int>,
    std::vector<int>>;

/// The member of Config that holds a key; monostate for refused names.
using Field = std::variant<
    std::monostate,
    bool Config::*,
    int Config::*,
    std::int64_t Config::*,
    double Config::*,
    std::string Config::*,
    Choice<Pipeline> Config::*,
    Choice<PlacementStrategy> Config::*,
    Choice<DdpBackend> Config::*,
    Choice<Optimize> Config::*,
    Choice<TraceDevice> Config::*,
    Choice<PartitionMode> Config::*,
    Choice<TensorParallelKind> Config::*,
    Choice<MeshMemory> Config::*,
    Choice<SameNodeBackend> Config::*,
    Choice<RandomNumbers> Config::*,
    std::map<std::string, int> Config::*,
    std::vector<int> Config::*,
    std::optional<int> Config::*,
    std::optional<double> Config::*,
    std::optional<std::string> Config::*>;

enum class Type { kBool, kInteger, kNumber, kText, kMap, kList, kNone };

enum class Status {
  kAvailable,
  kNotYet, // known, documented; only its neutral default is accepted
  kRefused // a name of another library that has no meaning here
};

/// One row of the table that drives parsing, validation, `tessera config` and
/// docs/configuration.md. A new key is one field in Config and one row here;
/// the day its function exists, `status` is the one flag to flip.
struct Key {
  std::string name;
  std::string section = {}; // heading of the documentation
  Field field;
  std::vector<std::string> aliases = {};
  /// Texts that are allowed, from the member's closed set; empty: any.
  std::vector<std::string> choices = {};
  /// Bounds of numbers, and of the values of a map or list.
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  /// Whether `min` itself is too small (numbers), or "" is (texts).
  bool open = false;
  Status status = Status::kAvailable;
  /// Default in words, for keys that may be left unsaid.
  std::string unsaid = {};
  /// Where the key is specified.
  std::string source;
  std::string description;
  /// Refused and not yet available keys: why, and what to do instead.
  std::string reason = {};
};

/// Returns every known key, in the order of the documentation.
const std::vector<Key>& keys();

/// Returns the key of this name or alias, or nullptr.
const Key* find_key(std::string_view name);

Type type_of(const Key& key);
/// "true or false", "integer", "number", "text", "object of integers", "list of integers".
std::string_view name_of(Type type);

/// Returns the texts of the member's closed set; none for other members.
std::vector<std::string> choices_of(const Key& key);

Value get(const Key& key, const Config& config);
/// `value` must be of the key's type and inside its range.
void set(const Key& key, Config& config, const Value& value);

/// Returns what may be written, in words: "an integer of at least 1".
std::string allowed(const Key& key);
/// Returns the default in words: `"interleaved"`, `partitions + 2`.
std::string default_of(const Key& key);
/// As JSON would write it.
std::string to_text(const Value& value);
/// Returns whether `value` (of the key's type) lies in the key's range.
bool in_range(const Key& key, const Value& value);

} // namespace tessera::config
