#pragma once

#include <cstdint>
#include <vector>

#include "tessera/operations/cut_options.h"
#include "tessera/operations/graph.h"
#include "tessera/operations/units.h"

namespace tessera::operations {

struct Cut {
  std::vector<int> part_of_operation;
  /// Bytes of tensors that other parts read, each tensor once for each part that reads it.
  std::int64_t crossing_bytes = 0;
  /// Over all that is balanced, the greatest load of a part, of the mean 1.
  double imbalance = 1;
  int groups = 0; // of operations that must be in one part
};

/// Divides the operations over parts so that few bytes cross, among divisions whose imbalance is at
/// most 1.1 times the least that was found, and where every part has variables if there are enough
/// groups with some. Without anything placed, parts are numbered by their first operations.
///
/// Operations with a part (Operation::part) take their groups there, and the others are divided
/// around them; CutOptions::default_part takes the others in place of that. Operations that were
/// given one part count as connected.
///
/// Up to 12 groups all divisions are tried; more are divided by METIS (multilevel, fixed seed), and
/// every way then improved by moving and exchanging groups. The same graph gives the same parts.
/// Source: the library's documentation of automated and manual splitting (TensorFlow); Karypis and
/// Kumar 1998.
/// Throws: PlanError as `validate`, for parts < 1, for a part that there is not, and for a group
/// that has to be in two parts, with what puts it there and what keeps it together.
Cut cut(const Graph& graph, const Units& units, const CutOptions& options);

} // namespace tessera::operations
