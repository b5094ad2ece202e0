#pragma once

#include <cstdint>
#include <string>

namespace tessera::report {

/// "0 B", "1.50 KiB", "12.3 GiB": binary units, three significant digits.
std::string format_bytes(double bytes);
/// "950", "12.3 k", "1.50 M", "175 B": decimal units, three significant digits.
std::string format_count(double count);
/// "12.3 us", "1.50 ms", "2.00 s", "3 min 20 s", "2 h 5 min".
std::string format_seconds(double seconds);
/// "12.3 %"; `share` is from 0 to 1.
std::string format_share(double share);
/// `digits` significant digits without trailing zeros; "NaN" when it is none.
std::string format_number(double value, int digits = 4);

/// Four digits after the point: "0.1250".
std::string format_fixed(double value);

/// `text` for the content of an HTML or SVG element and for an attribute in
/// either kind of quotes. Control characters other than tab and line break,
/// which neither form may hold, become U+FFFD.
std::string escape(const std::string& text);

/// RFC 4648, with padding.
std::string base64(const std::string& bytes);

} // namespace tessera::report
