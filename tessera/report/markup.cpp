#include "tessera/report/markup.h"

#include <cmath>

#include "tessera/base/error.h"
#include "tessera/report/format.h"

namespace tessera::report {

std::string fill(std::string_view pattern, std::initializer_list<std::string> values) {
  std::string out;
  const auto* next = values.begin();
  for (std::size_t at = 0;;) {
    const std::size_t gap = pattern.find("{}", at);
    out += pattern.substr(at, gap - at);
    if (gap == std::string_view::npos) {
      break;
    }
    TESSERA_CHECK(next != values.end(), "more gaps than values in ", pattern);
    out += *next++;
    at = gap + 2;
  }
  TESSERA_CHECK(next == values.end(), "more values than gaps in ", pattern);
  return out;
}

std::string attribute(double value) {
  const double rounded = std::round(value * 1e4) / 1e4;
  return format_number(rounded == 0 ? 0 : rounded, 9);
}

} // namespace tessera::report
