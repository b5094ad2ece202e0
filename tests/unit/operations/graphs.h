#pragma once

#include <string>
#include <vector>

#include "tessera/operations/graph.h"

/// Small graphs of operations, written down one operation after the other.
namespace tessera::operations {

class GraphOf {
 public:
  /// An operation that reads the results of others, with a variable of its own of these bytes (0:
  /// none); returns its number, which is that of its result as well.
  int add(
      const std::vector<int>& reads,
      std::int64_t makes_bytes,
      std::int64_t variable_bytes = 0) {
    const int number = static_cast<int>(graph.operations.size());
    Operation operation;
    operation.name = "op" + std::to_string(number);
    operation.reads = reads;
    operation.makes = {number};
    if (variable_bytes > 0) {
      const std::string module = "m" + std::to_string(number);
      operation.variables = {static_cast<int>(graph.variables.size())};
      graph.variables.push_back({module + ".weight", module, variable_bytes});
    }
    graph.tensors.push_back({number, makes_bytes});
    graph.operations.push_back(operation);
    return number;
  }

  Graph graph;
};

/// Each operation reads the one before; all have a variable of 100 bytes.
inline Graph chain(const std::vector<std::int64_t>& bytes) {
  GraphOf made;
  int last = -1;
  for (const std::int64_t size : bytes) {
    last = made.add(last < 0 ? std::vector<int>{} : std::vector<int>{last}, size, 100);
  }
  made.graph.results = {last};
  return made.graph;
}

} // namespace tessera::operations
