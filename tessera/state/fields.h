#pragma once

#include <map>
#include <string>

#include <ATen/core/ivalue.h>

namespace tessera::state {

/// Values by name: tensors, numbers, booleans, strings, tuples and lists of numbers. What is
/// undefined or empty in an optimizer has no entry.
using Fields = std::map<std::string, c10::IValue>;

/// Returns whether two sets of options are equal, nan to nan. Not for fields with tensors.
bool same_fields(const Fields& a, const Fields& b);

} // namespace tessera::state
