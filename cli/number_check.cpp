#include "cli/number_check.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <map>
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

CLI::Validator size_in_bytes() {
  return CLI::Validator(
      [](std::string& text) {
        double value = 0;
        const char* end = text.data() + text.size();
        const auto [rest, failure] = std::from_chars(text.data(), end, value);
        static const std::map<std::string, double> kUnits = {
            {"", 1},
            {"b", 1},
            {"kb", 1024.0},
            {"kib", 1024.0},
            {"mb", 1048576.0},
            {"mib", 1048576.0},
            {"gb", 1073741824.0},
            {"gib", 1073741824.0},
            {"tb", 1099511627776.0},
            {"tib", 1099511627776.0}};
        const auto unit = kUnits.find(CLI::detail::to_lower(std::string(rest, end)));
        constexpr double kMost = 1e18;
        if (failure != std::errc() || unit == kUnits.end() || !(value > 0) ||
            !(value * unit->second < kMost)) {
          return str("must be bytes above 0, as 24GiB, 0.5GiB or 2000000, found '", text, "'");
        }
        text = std::to_string(static_cast<std::int64_t>(value * unit->second));
        return std::string();
      },
      "SIZE");
}

CLI::Validator non_negative_number() {
  return bounded("NONNEGATIVE", "0 or a number above it", true);
}

} // namespace tessera::cli
