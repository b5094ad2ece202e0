#pragma once

#include <vector>

#include "tessera/operations/graph.h"

namespace tessera::operations {

/// Sets of numbers 0 .. n - 1 that grow together.
class DisjointSets {
 public:
  explicit DisjointSets(int count);
  int find(int element);
  /// The smaller of both representatives stays.
  void join(int a, int b);
  /// By element, the number of its set; sets are numbered by their smallest elements.
  std::vector<int> numbered();

 private:
  std::vector<int> parent_;
};

/// Sets of operations that run in one go.
struct Units {
  std::vector<int> unit_of_operation;
  std::vector<std::vector<int>> operations; // of each unit, ascending
  /// Units that have to run before each; without circles.
  std::vector<std::vector<int>> before;
};

/// Makes a unit of each operation, or of those that Graph::inseparable keeps in one go; operations
/// on a way from one of a unit to another of it belong to the unit, so that units have an order.
Units make_units(const Graph& graph);

/// By operation, the number of its group: what must be in one part. Operations of one unit, those
/// that consume the same variable or variables of one module, those of one layer, and those that
/// Graph::together lists; groups that share an operation are one. Groups are numbered by their
/// first operations.
/// Source: the library's documentation of automated splitting (TensorFlow).
std::vector<int> make_groups(const Graph& graph, const Units& units);

/// Returns why two operations of one group are together, step by step: "operation 0 (aten::t) and
/// operation 1 (aten::addmm) use variables of module 'head'; ...".
std::string why_together(const Graph& graph, const Units& units, int a, int b);

} // namespace tessera::operations
