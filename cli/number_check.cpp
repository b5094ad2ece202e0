#include "cli/number_check.h"

#include <charconv>
#include <cmath>
#include <string>

#include "tessera/base/error.h"

namespace tessera::cli {

namespace {

CLI::Validator bounded(const char* name, const char* wanted, bool zero) {
  return CLI::Validator(
      [wanted, zero](const std::string& text) {
        double value = 0;
        const char* end = text.data() + text.size();
        const auto result = std::from_chars(text.data(), end, value);
        const bool number = result.ec == std::errc() && result.ptr == end && std::isfinite(value);
        return number && (value > 0 || (zero && value == 0))
                   ? std::string()
                   : str("must be ", wanted, ", found '", text, "'");
      },
      name);
}

} // namespace

CLI::Validator positive_number() {
  return bounded("POSITIVE", "a number above 0", false);
}

CLI::Validator non_negative_number() {
  return bounded("NONNEGATIVE", "0 or a number above it", true);
}

} // namespace tessera::cli
