#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::operations {

/// A parameter or buffer of the model, once, under its first name.
struct Variable {
  std::string name; // "layers.0.weight"
  std::string module; // path of the module that it is registered in, "layers.0"
  std::int64_t bytes = 0;
};

/// What an operation makes and others read. A tensor that an operation changes in place is another
/// one afterwards.
struct Tensor {
  int producer = -1; // operation; -1: given to the model
  std::int64_t bytes = 0;
};

/// A call of an operator.
struct Operation {
  std::string name; // "aten::linear"
  /// Path of the layer (a module without modules inside) whose forward makes the call; "": of
  /// none that is known.
  std::string layer = {};
  std::string module = {}; // path of the innermost module that runs, for messages
  std::vector<int> reads = {}; // tensors
  std::vector<int> makes = {}; // tensors
  std::vector<int> variables = {}; // that it consumes
  /// Operations that have to run before, although no tensor passes: the one before that draws
  /// random numbers, or that changes what both use.
  std::vector<int> after = {};
  double seconds = 0; // 0: not measured
  /// Part that it has to be in, and who says so, for messages; -1: any.
  int part = -1;
  std::string placed_by = {};
};

/// Operations that have to be in one part.
struct Together {
  std::vector<int> operations;
  std::string asked_by = {}; // for messages
  /// What it is called in other graphs of the model; "": it is of this one alone.
  std::string name = {};
};

/// The operations of one forward, as plain data: a graph without circles, in the order in which
/// they were recorded.
struct Graph {
  std::string name;
  std::vector<Operation> operations;
  std::vector<Tensor> tensors;
  std::vector<Variable> variables;
  std::vector<int> results = {}; // tensors that the model returns
  /// Operations that run in one go, with all between them: those up to the last change in place of
  /// one memory.
  std::vector<std::vector<int>> inseparable = {};
  /// Further operations that must be in one part.
  std::vector<Together> together = {};
};

/// "operation 3 (aten::addmm in 'head')".
std::string name_of_operation(const Graph& graph, int operation);

/// Throws: PlanError that names the operation whose index is out of range, or that reads what is
/// made after it.
void validate(const Graph& graph);

/// Returns the operations that have to run before `operation`, ascending, each once.
std::vector<int> predecessors(const Graph& graph, int operation);

} // namespace tessera::operations
