#include "tessera/base/json/read.h"
#include "tessera/base/json/write.h"
#include "tessera/graph/model_graph.h"

namespace tessera::graph {

// The forms check no indices, because validate() does that for all readers.

template <typename Visit>
void describe(Visit& visit, Parameter& parameter) {
  visit({.name = "name"}, parameter.name);
  visit({.name = "shape", .bounds = form::at_least(0)}, parameter.shape);
  visit({.name = "dtype"}, parameter.dtype);
  visit({.name = "elements", .bounds = form::at_least(0)}, parameter.elements);
  visit({.name = "bytes", .bounds = form::at_least(0)}, parameter.bytes);
}

template <typename Visit>
void describe(Visit& visit, Module& module) {
  visit({.name = "path"}, module.path);
  visit({.name = "type"}, module.type);
  visit({.name = "parent", .bounds = form::at_least(-1)}, module.parent);
  visit({.name = "children"}, module.children);
  visit({.name = "parameters"}, module.parameters);
  visit({.name = "first_call", .bounds = form::at_least(-1)}, module.first_call);
  visit({.name = "calls", .bounds = form::at_least(0)}, module.calls);
  visit({.name = "forward_seconds"}, module.forward_seconds);
  visit(
      {.name = "returned_bytes",
       .bounds = form::at_least(0),
       .presence = form::Presence::kOptional},
      module.returned_bytes);
  visit({.name = "activation_bytes", .bounds = form::at_least(0)}, module.activation_bytes);
  visit({.name = "manual_partition", .bounds = form::at_least(-1)}, module.manual_partition);
}

template <typename Visit>
void describe(Visit& visit, ModelGraph& graph) {
  visit.head("tessera.model_graph", 1);
  visit({.name = "name"}, graph.name);
  visit({.name = "traced"}, graph.traced);
  visit({.name = "timed"}, graph.timed);
  visit({.name = "modules"}, graph.modules);
  visit({.name = "parameters"}, graph.parameters);
}

std::string to_json(const ModelGraph& graph) {
  validate(graph);
  return indented(form::write(graph), 1);
}

ModelGraph model_graph_from_json(const std::string& text) {
  auto graph = form::read_text<ModelGraph, PlanError>(text, "model graph");
  validate(graph);
  return graph;
}

} // namespace tessera::graph
