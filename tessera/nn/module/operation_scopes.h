#pragma once

#include <compare>
#include <string>
#include <vector>

/// What a script asks for the operators of a forward that is divided by operations (the key
/// partition_mode): the scopes of marks.h that are open when they are called.
/// Threads: a scope belongs to its thread.
namespace tessera::nn {

/// Names scopes whose operators stay on one rank.
struct ScopeName {
  std::string name = {}; // "": of one scope alone
  int number = 0; // of a scope without a name, in the order of the forward
  std::strong_ordering operator<=>(const ScopeName&) const = default;
};
/// "tessera::colocation(\"head\")", or which one of those without a name it is.
std::string text_of(const ScopeName& scope);

/// What the open scopes ask for the operator that is called now.
struct OperatorWish {
  int rank = -1; // of the innermost tessera::partition; -1: none is open
  std::vector<ScopeName> together = {}; // outermost first
  bool operator==(const OperatorWish&) const = default;
};
/// "in no scope", "in tessera::partition(1), tessera::colocation(\"head\")".
std::string text_of(const OperatorWish& wish);

/// A forward whose operators are recorded: scopes count from its begin.
/// Throws: UserError when one is open.
class RecordedForward {
 public:
  RecordedForward();
  ~RecordedForward();
  RecordedForward(const RecordedForward&) = delete;
  RecordedForward& operator=(const RecordedForward&) = delete;

  /// Returns what is asked for an operator that is called now.
  static OperatorWish wish();
};

} // namespace tessera::nn
