#include <filesystem>
#include <functional>
#include <utility>

#include "tessera/base/files.h"
#include "tessera/base/json/field.h"
#include "tessera/base/text.h"
#include "tessera/config/findings.h"
#include "tessera/config/launched_values.h"
#include "tessera/config/launcher.h"

namespace tessera::config {

namespace {

constexpr int kDeepest = 32;

// Follows "parameters": "other.json"; only a config read from a file may.
using Opener = std::function<std::string(const std::string& name)>;

bool to_map(const OrderedJson& value, std::map<std::string, int>& into) {
  for (const auto& [path, entry] : value.items()) {
    std::int64_t number = 0;
    if (!form::to_integer(entry, number) || !std::in_range<int>(number)) {
      return false;
    }
    into[path] = static_cast<int>(number);
  }
  return value.is_object();
}

bool to_list(const OrderedJson& value, std::vector<int>& into) {
  for (const OrderedJson& entry : value) {
    std::int64_t number = 0;
    if (!form::to_integer(entry, number) || !std::in_range<int>(number)) {
      return false;
    }
    into.push_back(static_cast<int>(number));
  }
  return value.is_array();
}

// The JSON value as the key's type; monostate when it is of another type.
Value convert(const Key& key, const OrderedJson& value) {
  switch (type_of(key)) {
    case Type::kBool:
      return value.is_boolean() ? Value{value.get<bool>()} : Value{};
    case Type::kInteger: {
      std::int64_t number = 0;
      return form::to_integer(value, number) ? Value{number} : Value{};
    }
    case Type::kNumber:
      return value.is_number() ? Value{value.get<double>()} : Value{};
    case Type::kText:
      return value.is_string() ? Value{value.get<std::string>()} : Value{};
    case Type::kMap: {
      std::map<std::string, int> map;
      return to_map(value, map) ? Value{std::move(map)} : Value{};
    }
    case Type::kList: {
      std::vector<int> list;
      return to_list(value, list) ? Value{std::move(list)} : Value{};
    }
    case Type::kNone:
      return {};
  }
  return {};
}

// The value, or of an object or a list its first part that the key does not take.
std::string shown_wrong(const Key& key, const OrderedJson& value) {
  const bool map = type_of(key) == Type::kMap && value.is_object();
  if (map || (type_of(key) == Type::kList && value.is_array())) {
    for (const auto& [place, part] : value.items()) {
      OrderedJson alone;
      if (map) {
        alone[place] = part;
      } else {
        alone.push_back(part);
      }
      const Value converted = convert(key, alone);
      if (std::holds_alternative<std::monostate>(converted) || !in_range(key, converted)) {
        return str(form::shown(part), " at ", map ? quoted_briefly(place) : place);
      }
    }
  }
  return form::shown(value);
}

class Reader {
 public:
  Reader(std::string origin, Opener open, Config base = {})
      : origin_(std::move(origin)), open_(std::move(open)), config_(std::move(base)) {}

  Config read(const std::string& text) {
    const OrderedJson root = parse(text, origin_);
    if (!root.is_object()) {
      throw ConfigError(
          str(origin_,
              ": found ",
              form::shown(root),
              "; write an object of keys such as "
              "{\"pipeline_parallel_degree\": 2}"));
    }
    if (root.contains("smdistributed")) {
      read_outer(root);
    } else {
      read_keys(root, true);
    }
    findings_.check(config_);
    findings_.throw_any(origin_);
    return config_;
  }

 private:
  OrderedJson parse(const std::string& text, const std::string& name) {
    try {
      for (const RepeatedKey& key : repeated_keys(text, {.most_levels = kDeepest})) {
        findings_.add(to_text(key));
      }
      return OrderedJson::parse(text);
    } catch (const JsonError& error) {
      throw ConfigError(str(name, ": ", error.what()));
    } catch (const OrderedJson::exception& error) {
      throw ConfigError(str(name, ": not valid JSON: ", cause_of(error)));
    }
  }

  void read_outer(const OrderedJson& root) {
    for (const auto& [name, value] : root.items()) {
      if (name == "mpi") {
        read_mpi(value);
      } else if (name == "smdistributed") {
        read_smdistributed(value);
      } else {
        findings_.add(
            quoted_briefly(name) +
            ": only \"smdistributed\" and \"mpi\" may stand here; "
            "parallelism keys belong into "
            "smdistributed.modelparallel.parameters");
      }
    }
  }

  void read_smdistributed(const OrderedJson& value) {
    if (!expect_object(value, "smdistributed")) {
      return;
    }
    for (const auto& [name, inner] : value.items()) {
      if (name == "modelparallel") {
        read_modelparallel(inner);
      } else if (name == "dataparallel") {
        findings_.add(
            "smdistributed.dataparallel: cannot be joined with modelparallel "
            "in one job; leave it out and write \"ddp\": true among the "
            "parameters");
      } else {
        unknown("smdistributed.", name, {"modelparallel"});
      }
    }
    if (!value.contains("modelparallel")) {
      findings_.add("smdistributed: \"modelparallel\" is missing");
    }
  }

  void read_modelparallel(const OrderedJson& value) {
    const std::string place = "smdistributed.modelparallel";
    if (!expect_object(value, place)) {
      return;
    }
    for (const auto& [name, inner] : value.items()) {
      if (name == "enabled") {
        expect_enabled(inner, place);
      } else if (name != "parameters") {
        unknown(place + ".", name, {"enabled", "parameters"});
      } else if (inner.is_string()) {
        read_parameter_file(inner.get<std::string>());
      } else if (expect_object(inner, place + ".parameters")) {
        read_keys(inner, false);
      }
    }
    if (!value.contains("parameters")) {
      findings_.add(place + ": \"parameters\" is missing; write an object of keys");
    }
  }

  void read_parameter_file(const std::string& name) {
    if (!open_) {
      findings_.add(
          "smdistributed.modelparallel.parameters: a file name (" + quoted_briefly(name) +
          ") is followed only from a config that is itself a file; write the "
          "keys here");
      return;
    }
    const OrderedJson inner = parse(open_(name), name);
    if (expect_object(inner, quoted_briefly(name))) {
      read_keys(inner, false);
    }
  }

  void read_mpi(const OrderedJson& value) {
    if (!expect_object(value, "mpi")) {
      return;
    }
    for (const auto& [name, inner] : value.items()) {
      if (name == "enabled") {
        expect_enabled(inner, "mpi");
      } else if (name == "processes_per_host" || name == "custom_mpi_options") {
        read_key(*find_key(name), name, inner);
      } else {
        unknown("mpi.", name, {"enabled", "processes_per_host", "custom_mpi_options"});
      }
    }
  }

  void read_keys(const OrderedJson& object, bool with_mpi) {
    for (const auto& [name, value] : object.items()) {
      if (const Key* key = find_key(name)) {
        read_key(*key, name, value);
      } else if (with_mpi && name == "mpi") {
        read_mpi(value);
      } else {
        std::vector<std::string> names;
        for (const Key& known : keys()) {
          names.push_back(known.name);
          names.insert(names.end(), known.aliases.begin(), known.aliases.end());
        }
        unknown("", name, names);
      }
    }
  }

  void read_key(const Key& key, const std::string& name, const OrderedJson& value) {
    const auto [earlier, first] = given_.emplace(key.name, name);
    if (!first) {
      findings_.add(
          key,
          str("given twice, as ",
              quoted_briefly(earlier->second),
              " and as ",
              quoted_briefly(name),
              "; keep one"));
      return;
    }
    findings_.spelled(key, name);
    if (key.status == Status::kRefused) {
      findings_.add(key, "not a key of Tessera: " + key.reason);
      return;
    }
    const Value converted = convert(key, value);
    if (std::holds_alternative<std::monostate>(converted) || !in_range(key, converted)) {
      findings_.add(key, str("found ", shown_wrong(key, value), "; write ", allowed(key)));
      return;
    }
    set(key, config_, converted);
  }

  void unknown(
      const std::string& place,
      const std::string& name,
      const std::vector<std::string>& known) {
    constexpr std::size_t kFew = 12; // more are a page of their own
    const std::string near = nearest_alike(name, known);
    findings_.add(
        str(place,
            quoted_briefly(name),
            ": unknown key; ",
            !near.empty()          ? str("the nearest known key is \"", near, "\"")
            : known.size() <= kFew ? str("the known ones are ", join(known, ", "))
                                   : str("`tessera config --explain` lists the known ones")));
  }

  bool expect_object(const OrderedJson& value, const std::string& place) {
    if (!value.is_object()) {
      findings_.add(str(place, ": found ", form::shown(value), "; write an object"));
    }
    return value.is_object();
  }

  void expect_enabled(const OrderedJson& value, const std::string& place) {
    if (value != OrderedJson(true)) {
      findings_.add(
          str(place,
              ".enabled: found ",
              form::shown(value),
              "; write true, or leave the whole block out"));
    }
  }

  std::string origin_;
  Opener open_;
  Findings findings_;
  Config config_;
  std::map<std::string, std::string> given_; // key -> name it was given under
};

OrderedJson json_of(const Value& value) {
  return std::visit(
      [](const auto& held) {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return OrderedJson();
        } else {
          return OrderedJson(held);
        }
      },
      value);
}

std::string config_text(const std::string& path) {
  FileContent content = try_read_file(path);
  if (!content.bytes) {
    throw ConfigError(
        str(path, ": no such file (", content.failure, "); give the name of a JSON file"));
  }
  return std::move(*content.bytes);
}

} // namespace

Config parse_config(const std::string& json_text, const std::string& origin) {
  return Reader(origin, nullptr).read(json_text);
}

Config load_config(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path();
  return Reader(
             path, [&](const std::string& name) { return config_text((folder / name).string()); })
      .read(config_text(path));
}

Launched with_launcher_values(const Config& given, const std::string& text) {
  return with_values_of(given, text, kLauncherVariable);
}

Launched with_values_of(const Config& given, const std::string& text, const char* name) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    return {given, {}};
  }
  Launched launched{Reader(name, nullptr, given).read(text), {}};
  for (const Key& key : keys()) {
    const Value said = get(key, launched.config);
    const Value before = get(key, given);
    if (said != before) {
      launched.changes.push_back(
          str("\"",
              key.name,
              "\" is ",
              form::shown(json_of(said)),
              " by ",
              name,
              std::holds_alternative<std::monostate>(before)
                  ? std::string()
                  : ", not " + form::shown(json_of(before))));
    }
  }
  return launched;
}

std::string to_json(const Config& config) {
  OrderedJson object;
  for (const Key& key : keys()) {
    const Value value = get(key, config);
    if (!std::holds_alternative<std::monostate>(value)) {
      object[key.name] = json_of(value);
    }
  }
  return indented(object, 2) + "\n";
}

} // namespace tessera::config
