#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/graph/model_graph.h"

namespace tessera::graph {

namespace {

// Objects keep the order in which fields are written, so files read well.
using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "tessera.model_graph";
constexpr int kVersion = 1;

[[noreturn]] void refuse(
    const std::string& where,
    const std::string& found,
    const std::string& expected) {
  throw PlanError(
      str("model graph: ", where, ": found ", found, "; expected ", expected));
}

std::string shorten(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  constexpr std::size_t kLongest = 60;
  if (text.size() > kLongest) {
    text = text.substr(0, kLongest) + "...";
  }
  return text;
}

std::int64_t integer_from(const Json& value, const std::string& where) {
  // Above the range of int64 the parser makes an unsigned number.
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX)) {
    refuse(where, shorten(value), "an integer of 64 bits");
  }
  return value.get<std::int64_t>();
}

int index_from(const Json& value, const std::string& where) {
  const std::int64_t wide = integer_from(value, where);
  if (wide < INT32_MIN || wide > INT32_MAX) {
    refuse(where, shorten(value), "an integer of 32 bits");
  }
  return static_cast<int>(wide);
}

// One JSON object whose fields are all required and all known.
class Fields {
 public:
  Fields(
      const Json& object,
      std::string where,
      std::initializer_list<std::string_view> names)
      : object_(object), where_(std::move(where)) {
    if (!object.is_object()) {
      refuse(where_, shorten(object), "an object");
    }
    for (const std::string_view name : names) {
      if (!object.contains(name)) {
        refuse(where_, str("no field \"", name, "\""), "it to be there");
      }
    }
    for (const auto& [name, value] : object.items()) {
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        std::string known;
        for (const std::string_view other : names) {
          known += str(known.empty() ? "" : ", ", other);
        }
        refuse(where_, str("the field \"", name, "\""), str("only ", known));
      }
    }
  }

  std::string place(const char* name) const {
    return where_.empty() ? name : str(where_, ".", name);
  }

  std::string text(const char* name) const {
    const Json& value = object_.at(name);
    if (!value.is_string()) {
      refuse(place(name), shorten(value), "a string");
    }
    return value.get<std::string>();
  }

  bool truth(const char* name) const {
    const Json& value = object_.at(name);
    if (!value.is_boolean()) {
      refuse(place(name), shorten(value), "true or false");
    }
    return value.get<bool>();
  }

  double number(const char* name) const {
    const Json& value = object_.at(name);
    if (!value.is_number()) {
      refuse(place(name), shorten(value), "a number");
    }
    return value.get<double>();
  }

  int index(const char* name) const {
    return index_from(object_.at(name), place(name));
  }

  std::int64_t integer(const char* name) const {
    return integer_from(object_.at(name), place(name));
  }

  // Calls read(element, place) for each element of an array.
  template <typename Read>
  auto list(const char* name, Read read) const {
    const Json& array = object_.at(name);
    if (!array.is_array()) {
      refuse(place(name), shorten(array), "an array");
    }
    std::vector<decltype(read(array, std::string()))> result;
    result.reserve(array.size());
    for (std::size_t i = 0; i < array.size(); ++i) {
      result.push_back(read(array[i], str(place(name), "[", i, "]")));
    }
    return result;
  }

 private:
  const Json& object_;
  std::string where_;
};

Parameter parameter_from(const Json& json, const std::string& where) {
  const Fields fields(
      json, where, {"name", "shape", "dtype", "elements", "bytes"});
  Parameter parameter;
  parameter.name = fields.text("name");
  parameter.shape = fields.list("shape", integer_from);
  parameter.dtype = fields.text("dtype");
  parameter.elements = fields.integer("elements");
  parameter.bytes = fields.integer("bytes");
  return parameter;
}

Module module_from(const Json& json, const std::string& where) {
  const Fields fields(
      json,
      where,
      {"path",
       "type",
       "parent",
       "children",
       "parameters",
       "first_call",
       "calls",
       "forward_seconds",
       "activation_bytes",
       "manual_partition"});
  Module module;
  module.path = fields.text("path");
  module.type = fields.text("type");
  module.parent = fields.index("parent");
  module.children = fields.list("children", index_from);
  module.parameters = fields.list("parameters", index_from);
  module.first_call = fields.index("first_call");
  module.calls = fields.index("calls");
  module.forward_seconds = fields.number("forward_seconds");
  module.activation_bytes = fields.integer("activation_bytes");
  module.manual_partition = fields.index("manual_partition");
  return module;
}

} // namespace

std::string to_json(const ModelGraph& graph) {
  validate(graph);
  Json modules = Json::array();
  for (const Module& module : graph.modules) {
    modules.push_back(
        {{"path", module.path},
         {"type", module.type},
         {"parent", module.parent},
         {"children", module.children},
         {"parameters", module.parameters},
         {"first_call", module.first_call},
         {"calls", module.calls},
         {"forward_seconds", module.forward_seconds},
         {"activation_bytes", module.activation_bytes},
         {"manual_partition", module.manual_partition}});
  }
  Json parameters = Json::array();
  for (const Parameter& parameter : graph.parameters) {
    parameters.push_back(
        {{"name", parameter.name},
         {"shape", parameter.shape},
         {"dtype", parameter.dtype},
         {"elements", parameter.elements},
         {"bytes", parameter.bytes}});
  }
  const Json file = {
      {"format", kFormat},
      {"version", kVersion},
      {"name", graph.name},
      {"traced", graph.traced},
      {"timed", graph.timed},
      {"modules", std::move(modules)},
      {"parameters", std::move(parameters)}};
  return file.dump(1);
}

ModelGraph model_graph_from_json(const std::string& text) {
  Json file;
  try {
    file = Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw PlanError(str("model graph: not JSON: ", error.what()));
  }
  // The head first: of another version the other fields say nothing.
  if (!file.is_object() || !file.contains("format") ||
      file["format"] != kFormat) {
    refuse(
        "format",
        file.is_object() && file.contains("format") ? shorten(file["format"])
                                                    : "no such field",
        str("\"", kFormat, "\""));
  }
  if (!file.contains("version") || file["version"] != kVersion) {
    refuse(
        "version",
        file.contains("version") ? shorten(file["version"]) : "no such field",
        str(kVersion, ", the version this program reads"));
  }
  const Fields fields(
      file,
      "",
      {"format",
       "version",
       "name",
       "traced",
       "timed",
       "modules",
       "parameters"});
  ModelGraph graph;
  graph.name = fields.text("name");
  graph.traced = fields.truth("traced");
  graph.timed = fields.truth("timed");
  graph.modules = fields.list("modules", module_from);
  graph.parameters = fields.list("parameters", parameter_from);
  validate(graph);
  return graph;
}

} // namespace tessera::graph
