#pragma once

// How a struct is described once, so that its reader, its writer, its schema and its reference
// follow from the description:
//
//   template <typename Visitor>
//   void describe(Visitor& visit, Parameter& parameter) {
//     visit.head("tessera.parameter", 1);  // of files: format and version
//     visit({.name = "name", .doc = "path under which it is found"}, parameter.name);
//     visit({.name = "bytes", .bounds = at_least(0)}, parameter.bytes);
//     visit.allow_unknown();               // first, where later programs may add keys
//     visit.define("parameter");           // a name in the schema
//     visit.check([&] { return ...; });    // a text when fields contradict each other, else ""
//   }
//
// `describe` stands in the struct's namespace (not in an unnamed one, where it is not found). It
// must be callable on a value of defaults. A member in another form than the file's is described
// through a local variable: converted before the visit, and where Visit::kReads converted back
// after it.

#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/json/parse.h"

namespace tessera::form {

/// What a number, each number of a list, or each value of an object may be.
struct Bounds {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false; // `min` itself is too small
  bool below_max = false; // `max` itself is too large

  bool contain(double value) const {
    return (above_min ? value > min : value >= min) && (below_max ? value < max : value <= max);
  }
};

constexpr Bounds at_least(double min) {
  return {.min = min};
}
constexpr Bounds between(double min, double max) {
  return {.min = min, .max = max};
}
constexpr Bounds from_to_below(double min, double limit) {
  return {.min = min, .max = limit, .below_max = true};
}
constexpr Bounds more_than(double min) {
  return {.min = min, .above_min = true};
}

enum class Presence {
  kRequired,
  kOptional, // may be missing: the member then keeps its default; always written
  kIfSaid // may be missing; written when it is not empty, not 0 and not false
};

/// One key of an object, apart from the member that holds its value.
struct Field {
  const char* name;
  const char* doc = ""; // half a sentence, for the schema and the reference
  Bounds bounds = {};
  Presence presence = Presence::kRequired;
  std::vector<std::string> choices = {}; // texts, and keys of a map; empty: any
  bool not_empty = false; // of texts; for lists and objects only the schema says it
  double unit = 1; // a member of type double holds the file's number times this
  bool null_is_nan = false; // null stands for "not a number", which JSON cannot write
};

enum class Kind { kBool, kInteger, kNumber, kText, kList, kObject, kAny };

/// Returns " of at least 1", " from 0 to 1", ...; "" without bounds.
std::string bounds_text(const Bounds& bounds, bool integers);

/// Returns what may be written, in words: "an integer of at least 1".
std::string allowed(const Field& field, Kind kind);

/// Returns the shortest text that reads back to the same number.
std::string number_text(double value);

/// Returns a value for people: texts are cut short; objects and lists of more than a few numbers
/// are only named.
std::string shown(const OrderedJson& value);

/// Reads an integer, also one written as 5e8; false when it is none or does not fit.
bool to_integer(const OrderedJson& value, std::int64_t& into);

/// Returns the number of a text such as "16" (at most six digits, no leading zero), or 0.
int whole_number(std::string_view text);

} // namespace tessera::form
