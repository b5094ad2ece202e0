#include "tessera/report/format.h"

#include <array>
#include <cmath>
#include <cstdio>

#include "tessera/base/error.h"

namespace tessera::report {

namespace {

std::string print(const char* pattern, int digits, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), pattern, digits, value);
  return text.data();
}

/// Returns three significant digits, and never fewer than those before the point: 1.50, 12.3, 175.
std::string three_digits(double value) {
  const double size = std::abs(value);
  return print("%.*f", size < 9.995 ? 2 : size < 99.95 ? 1 : 0, value);
}

template <std::size_t N>
std::string scaled(double value, double base, const std::array<const char*, N>& units) {
  if (!std::isfinite(value)) {
    return format_number(value);
  }
  std::size_t unit = 0;
  // The limit is below `base`, because 999.5 would print as 1000.
  while (std::abs(value) >= base - base / 2000 && unit + 1 < N) {
    value /= base;
    ++unit;
  }
  const bool whole = unit == 0 && value == std::floor(value);
  const std::string text = whole ? print("%.*f", 0, value) : three_digits(value);
  return *units[unit] == '\0' ? text : str(text, " ", units[unit]);
}

} // namespace

std::string format_bytes(double bytes) {
  return scaled(bytes, 1024, std::array{"B", "KiB", "MiB", "GiB", "TiB", "PiB"});
}

std::string format_count(double count) {
  return scaled(count, 1000, std::array{"", "k", "M", "B", "T"});
}

std::string format_seconds(double seconds) {
  if (!std::isfinite(seconds)) {
    return format_number(seconds);
  }
  if (seconds == 0) {
    return "0 s";
  }
  // The limits are below 1000, because 999.5 would print as 1000.
  if (std::abs(seconds) * 1e6 < 999.5) {
    return three_digits(seconds * 1e6) + " us";
  }
  if (std::abs(seconds) * 1e3 < 999.5) {
    return three_digits(seconds * 1e3) + " ms";
  }
  if (std::abs(seconds) < 99.5) {
    return three_digits(seconds) + " s";
  }
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 3600) {
    return str(whole / 60, " min ", whole % 60, " s");
  }
  return str(whole / 3600, " h ", whole % 3600 / 60, " min");
}

std::string format_share(double share) {
  return std::isfinite(share) ? print("%.*f", 1, share * 100) + " %" : format_number(share);
}

std::string format_number(double value, int digits) {
  if (std::isnan(value)) {
    return "NaN";
  }
  if (std::isinf(value)) {
    return value > 0 ? "infinity" : "-infinity";
  }
  return print("%.*g", digits, value);
}

std::string format_fixed(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4f", value);
  return text;
}

std::string escape(const std::string& text) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default: {
        const auto byte = static_cast<unsigned char>(c);
        const bool control = (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
        if (control) {
          result += "\xEF\xBF\xBD";
        } else {
          result += c;
        }
      }
    }
  }
  return result;
}

std::string base64(const std::string& bytes) {
  constexpr const char* kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string result;
  result.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t three = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      three <<= 8U;
      if (i + j < bytes.size()) {
        three |= static_cast<unsigned char>(bytes[i + j]);
      }
    }
    for (std::size_t j = 0; j < 4; ++j) {
      const bool padding = i + j > bytes.size();
      result += padding ? '=' : kAlphabet[(three >> (18 - 6 * j)) & 63U];
    }
  }
  return result;
}

} // namespace tessera::report
