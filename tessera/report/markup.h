#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace tessera::report {

/// `pattern` with each "{}" replaced by the next of `values`, which go in as they are: escape()
/// whatever a user may have written. A brace pair with anything inside is left alone, as CSS needs.
/// Throws: Error when the numbers of "{}" and of values differ.
std::string fill(std::string_view pattern, std::initializer_list<std::string> values);

/// A length or a share for an attribute: at most four digits after the point, no "-0".
std::string attribute(double value);

} // namespace tessera::report
