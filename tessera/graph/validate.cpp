#include <cmath>
#include <limits>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/graph/model_graph.h"

namespace tessera::graph {

namespace {

std::string name_of(const ModelGraph& graph, std::size_t index) {
  return str("modules[", index, "] (\"", graph.modules[index].path, "\")");
}

// Returns the product of a shape, or -1 if a dimension is negative or the product
// does not fit into 64 bits.
std::int64_t count_elements(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) {
    if (size < 0 || (size > 0 && elements > std::numeric_limits<std::int64_t>::max() / size)) {
      return -1;
    }
    elements *= size;
  }
  return elements;
}

void validate_numbers(const ModelGraph& graph, std::size_t index) {
  const Module& module = graph.modules[index];
  const auto refuse = [&](const char* field, auto found, const char* expected) {
    throw PlanError(
        str(name_of(graph, index), ".", field, ": found ", found, "; expected ", expected));
  };
  if (!std::isfinite(module.forward_seconds) || module.forward_seconds < 0) {
    refuse("forward_seconds", module.forward_seconds, "seconds, 0 or more");
  }
  if (module.activation_bytes < 0) {
    refuse("activation_bytes", module.activation_bytes, "bytes, 0 or more");
  }
  if (module.returned_bytes < 0) {
    refuse("returned_bytes", module.returned_bytes, "bytes, 0 or more");
  }
  if (module.calls < 0) {
    refuse("calls", module.calls, "0 or more");
  }
  if (module.first_call < -1) {
    refuse("first_call", module.first_call, "-1 (not called) or a position");
  }
  if (module.manual_partition < -1) {
    refuse("manual_partition", module.manual_partition, "-1 (none) or a rank");
  }
}

// Checks pre-order: a module comes right after the sub-tree of its parent's previous
// child, so its parent is on the stack of modules whose sub-tree is still open.
void validate_order(const ModelGraph& graph) {
  std::vector<int> open;
  std::vector<std::size_t> seen_children(graph.modules.size(), 0);
  for (std::size_t i = 0; i < graph.modules.size(); ++i) {
    const int parent = graph.modules[i].parent;
    if (i == 0) {
      if (parent != -1) {
        throw PlanError(str(
            "modules[0] is the root and has no parent; found parent ", parent, ", expected -1"));
      }
    } else {
      while (!open.empty() && open.back() != parent) {
        open.pop_back();
      }
      if (open.empty()) {
        throw PlanError(
            str(name_of(graph, i),
                ": found parent ",
                parent,
                "; expected a module before it whose sub-tree is still open "
                "(modules stand in pre-order)"));
      }
      const auto& children = graph.modules[parent].children;
      const std::size_t position = seen_children[parent]++;
      if (position >= children.size() || children[position] != static_cast<int>(i)) {
        throw PlanError(str(
            name_of(graph, parent),
            ".children[",
            position,
            "]: expected ",
            i,
            ", which names it as its parent; found ",
            position < children.size() ? str(children[position]) : std::string("no such entry")));
      }
    }
    open.push_back(static_cast<int>(i));
  }
  for (std::size_t i = 0; i < graph.modules.size(); ++i) {
    const auto& children = graph.modules[i].children;
    if (children.size() != seen_children[i]) {
      throw PlanError(
          str(name_of(graph, i),
              ".children[",
              seen_children[i],
              "]: found ",
              children[seen_children[i]],
              ", which does not name it as its parent; remove the entry"));
    }
  }
}

void validate_paths(const ModelGraph& graph) {
  if (!graph.modules[0].path.empty()) {
    throw PlanError(
        str("modules[0] is the root, whose path is \"\"; found \"", graph.modules[0].path, "\""));
  }
  std::unordered_map<std::string, std::size_t> first;
  for (std::size_t i = 0; i < graph.modules.size(); ++i) {
    const auto [at, is_new] = first.emplace(graph.modules[i].path, i);
    if (!is_new) {
      throw PlanError(
          str(name_of(graph, i),
              " has the path of modules[",
              at->second,
              "]; paths name modules and must differ"));
    }
  }
}

void validate_parameters(const ModelGraph& graph) {
  std::vector<int> last_holder(graph.parameters.size(), -1);
  for (std::size_t i = 0; i < graph.modules.size(); ++i) {
    for (const int parameter : graph.modules[i].parameters) {
      if (parameter < 0 || parameter >= static_cast<int>(graph.parameters.size())) {
        throw PlanError(
            str(name_of(graph, i),
                ".parameters: found ",
                parameter,
                "; the graph has ",
                graph.parameters.size(),
                " parameters, numbered from 0"));
      }
      if (last_holder[parameter] == static_cast<int>(i)) {
        throw PlanError(
            str(name_of(graph, i), ".parameters lists ", parameter, " twice; list it once"));
      }
      last_holder[parameter] = static_cast<int>(i);
    }
  }
  for (std::size_t i = 0; i < graph.parameters.size(); ++i) {
    const Parameter& parameter = graph.parameters[i];
    const std::string name = str("parameters[", i, "] (\"", parameter.name, "\")");
    if (last_holder[i] < 0) {
      throw PlanError(str(name, " is held by no module; list it in the module it is in"));
    }
    if (count_elements(parameter.shape) != parameter.elements) {
      throw PlanError(
          str(name,
              ".elements: found ",
              parameter.elements,
              "; the shape has ",
              count_elements(parameter.shape)));
    }
    if (parameter.bytes < 0) {
      throw PlanError(str(name, ".bytes: found ", parameter.bytes, "; expected bytes, 0 or more"));
    }
  }
}

} // namespace

void validate(const ModelGraph& graph) {
  if (graph.modules.empty()) {
    throw PlanError("the model graph has no modules; expected at least the root");
  }
  validate_order(graph);
  validate_paths(graph);
  for (std::size_t i = 0; i < graph.modules.size(); ++i) {
    validate_numbers(graph, i);
  }
  validate_parameters(graph);
}

} // namespace tessera::graph
