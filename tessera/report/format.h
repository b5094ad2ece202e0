#pragma once

#include <cstdint>
#include <string>

namespace tessera::report {

/// Formats bytes in binary units with three significant digits: "0 B", "1.50 KiB", "12.3 GiB".
std::string format_bytes(double bytes);
/// Formats a count in decimal units with three significant digits: "950", "12.3 k", "1.50 M", "175
/// B".
std::string format_count(double count);
/// Formats a duration: "12.3 us", "1.50 ms", "2.00 s", "3 min 20 s", "2 h 5 min".
std::string format_seconds(double seconds);
/// Formats a share from 0 to 1: "12.3 %".
std::string format_share(double share);
/// Formats a number with `digits` significant digits and without trailing zeros; "NaN" when it is
/// not a number.
std::string format_number(double value, int digits = 4);

/// Formats a value with four digits after the point: "0.1250".
std::string format_fixed(double value);

/// Escapes `text` for the content of an HTML or SVG element and for an attribute in either kind of
/// quotes. Control characters other than tab and line break, which neither form may hold, become
/// U+FFFD.
std::string escape(const std::string& text);

/// Encodes bytes in base 64 with padding. Source: RFC 4648.
std::string base64(const std::string& bytes);

} // namespace tessera::report
