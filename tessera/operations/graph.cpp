#include "tessera/operations/graph.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::operations {

namespace {

void check_index(const std::string& what, int index, std::size_t size) {
  if (index < 0 || index >= static_cast<int>(size)) {
    throw PlanError(str("graph of operations: ", what, " is ", index, "; there are ", size));
  }
}

} // namespace

std::string name_of_operation(const Graph& graph, int operation) {
  const Operation& named = graph.operations.at(operation);
  return str(
      "operation ",
      operation,
      " (",
      named.name,
      named.module.empty() ? std::string() : str(" in '", named.module, "'"),
      ")");
}

void validate(const Graph& graph) {
  const auto count = static_cast<int>(graph.operations.size());
  for (int i = 0; i < count; ++i) {
    const Operation& operation = graph.operations[i];
    const std::string here = name_of_operation(graph, i) + ": ";
    for (const int tensor : operation.reads) {
      check_index(here + "a tensor that it reads", tensor, graph.tensors.size());
      if (graph.tensors[tensor].producer >= i) {
        throw PlanError(
            str(here, "reads a tensor that operation ", graph.tensors[tensor].producer, " makes"));
      }
    }
    for (const int tensor : operation.makes) {
      check_index(here + "a tensor that it makes", tensor, graph.tensors.size());
      if (graph.tensors[tensor].producer != i) {
        throw PlanError(str(here, "makes a tensor of operation ", graph.tensors[tensor].producer));
      }
    }
    for (const int variable : operation.variables) {
      check_index(here + "a variable", variable, graph.variables.size());
    }
    for (const int before : operation.after) {
      check_index(here + "an operation before it", before, static_cast<std::size_t>(i));
    }
  }
  for (const int tensor : graph.results) {
    check_index("a result", tensor, graph.tensors.size());
  }
  std::vector<std::vector<int>> lists = graph.inseparable;
  for (const Together& together : graph.together) {
    lists.push_back(together.operations);
  }
  for (const std::vector<int>& list : lists) {
    for (const int operation : list) {
      check_index("an operation that stays with others", operation, graph.operations.size());
    }
  }
}

std::vector<int> predecessors(const Graph& graph, int operation) {
  std::vector<int> before = graph.operations.at(operation).after;
  for (const int tensor : graph.operations[operation].reads) {
    if (graph.tensors[tensor].producer >= 0) {
      before.push_back(graph.tensors[tensor].producer);
    }
  }
  std::sort(before.begin(), before.end());
  before.erase(std::unique(before.begin(), before.end()), before.end());
  return before;
}

} // namespace tessera::operations
