#pragma once

#include <vector>

namespace tessera::operations {

/// What is balanced between the parts.
enum class Balance {
  kVariables, // the bytes of variables
  kWork // the number of variables and the number (where measured, the seconds) of operations
};

struct CutOptions {
  int parts = 1;
  Balance balance = Balance::kVariables;
  /// Every part is connected, unless the graph is not.
  bool contiguous = true;
  /// By variable, the part that has it already, -1: none; empty: none has. What is free goes near
  /// to what is placed, and nothing is balanced.
  std::vector<int> part_of_variable = {};
  /// The part of all that is free, which is then not searched for; -1: none.
  int default_part = -1;
};

} // namespace tessera::operations
