#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace tessera::report {

/// Returns `pattern` with each "{}" replaced by the next of `values`. Values are inserted as they
/// are, so escape() whatever a user may have written. A brace pair with anything inside is left
/// alone, as CSS needs.
/// Throws: Error when the numbers of "{}" and of values differ.
std::string fill(std::string_view pattern, std::initializer_list<std::string> values);

/// Formats a length or a share for an attribute, with at most four digits after the point and no
/// "-0".
std::string attribute(double value);

} // namespace tessera::report
