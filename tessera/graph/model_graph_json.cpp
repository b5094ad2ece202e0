#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json.h"
#include "tessera/base/json_fields.h"
#include "tessera/graph/model_graph.h"

namespace tessera::graph {

namespace {

constexpr const char* kFormat = "tessera.model_graph";
constexpr int kVersion = 1;
constexpr int kLeast = std::numeric_limits<int>::min();

// Ranges are checked once for all readers, by validate().
std::vector<int> indices(const JsonFields& fields, const char* key) {
  std::vector<int> result;
  for (const std::int64_t value : fields.integers(key, kLeast)) {
    if (value > std::numeric_limits<int>::max()) {
      fields.fail(str("'", key, "' has the entry ", value, ", no index"));
    }
    result.push_back(static_cast<int>(value));
  }
  return result;
}

Parameter parameter_from(const JsonFields& fields) {
  fields.allow_only({"name", "shape", "dtype", "elements", "bytes"});
  Parameter parameter;
  parameter.name = fields.text("name");
  parameter.shape = fields.integers("shape");
  parameter.dtype = fields.text("dtype");
  parameter.elements = fields.integer("elements");
  parameter.bytes = fields.integer("bytes");
  return parameter;
}

Module module_from(const JsonFields& fields) {
  fields.allow_only(
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
  module.parent = fields.small_integer("parent", -1);
  module.children = indices(fields, "children");
  module.parameters = indices(fields, "parameters");
  module.first_call = fields.small_integer("first_call", -1);
  module.calls = fields.small_integer("calls");
  module.forward_seconds = fields.number("forward_seconds");
  module.activation_bytes = fields.integer("activation_bytes");
  module.manual_partition = fields.small_integer("manual_partition", -1);
  return module;
}

// Calls read(fields) for each object of a list.
template <typename Read>
auto list_of(const JsonFields& file, const char* key, Read read) {
  const OrderedJson& array = file.at(key);
  if (!array.is_array()) {
    file.fail(str("'", key, "' must be a list, found ", one_line(array)));
  }
  std::vector<decltype(read(file))> result;
  result.reserve(array.size());
  for (std::size_t i = 0; i < array.size(); ++i) {
    result.push_back(read(JsonFields(array[i], str("model graph ", key, "[", i, "]"))));
  }
  return result;
}

ModelGraph graph_from(const JsonFields& file) {
  // The head first: of another version the other fields say nothing.
  if (file.text("format") != kFormat) {
    file.fail(str("'format' must be \"", kFormat, "\", found \"", file.text("format"), "\""));
  }
  if (file.integer("version") != kVersion) {
    file.fail(
        str("'version' must be ",
            kVersion,
            ", which this program reads, found ",
            file.integer("version")));
  }
  file.allow_only({"format", "version", "name", "traced", "timed", "modules", "parameters"});
  ModelGraph graph;
  graph.name = file.text("name");
  for (const auto& [key, flag] :
       {std::pair<const char*, bool*>("traced", &graph.traced),
        std::pair<const char*, bool*>("timed", &graph.timed)}) {
    if (!file.at(key).is_boolean()) {
      file.fail(str("'", key, "' must be true or false, found ", one_line(file.at(key))));
    }
    *flag = file.at(key).get<bool>();
  }
  graph.modules = list_of(file, "modules", module_from);
  graph.parameters = list_of(file, "parameters", parameter_from);
  return graph;
}

} // namespace

std::string to_json(const ModelGraph& graph) {
  validate(graph);
  OrderedJson modules = OrderedJson::array();
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
  OrderedJson parameters = OrderedJson::array();
  for (const Parameter& parameter : graph.parameters) {
    parameters.push_back(
        {{"name", parameter.name},
         {"shape", parameter.shape},
         {"dtype", parameter.dtype},
         {"elements", parameter.elements},
         {"bytes", parameter.bytes}});
  }
  const OrderedJson file = {
      {"format", kFormat},
      {"version", kVersion},
      {"name", graph.name},
      {"traced", graph.traced},
      {"timed", graph.timed},
      {"modules", std::move(modules)},
      {"parameters", std::move(parameters)}};
  // Names come from users' modules and need not be UTF-8.
  return file.dump(1, ' ', false, OrderedJson::error_handler_t::replace);
}

ModelGraph model_graph_from_json(const std::string& text) {
  ModelGraph graph;
  try {
    graph = graph_from(JsonFields(parse_json(text, "model graph"), "model graph"));
  } catch (const Error& error) {
    throw PlanError(error.what());
  }
  validate(graph);
  return graph;
}

} // namespace tessera::graph
