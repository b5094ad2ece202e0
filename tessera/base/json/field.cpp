#include "tessera/base/json/field.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "tessera/base/choice.h"

namespace tessera {

std::string quoted_choices(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const char* separator = i == 0 ? "" : i + 1 < names.size() ? ", " : " or ";
    text += separator + ("\"" + names[i] + "\"");
  }
  return text;
}

} // namespace tessera

namespace tessera::form {

namespace {

constexpr double kTwoTo63 = 9223372036854775808.0;

bool few_numbers(const OrderedJson& list) {
  constexpr std::size_t kFew = 4;
  return !list.empty() && list.size() <= kFew &&
         std::all_of(list.begin(), list.end(), [](const auto& entry) { return entry.is_number(); });
}

} // namespace

std::string bounds_text(const Bounds& bounds, bool integers) {
  const auto text = [&](double bound) {
    return integers ? str(static_cast<std::int64_t>(bound)) : number_text(bound);
  };
  const bool low = std::isfinite(bounds.min);
  const bool high = std::isfinite(bounds.max);
  if (low && bounds.above_min) {
    return str(" greater than ", text(bounds.min), high ? " and at most " + text(bounds.max) : "");
  }
  if (low && high) {
    return str(
        " from ", text(bounds.min), bounds.below_max ? " to below " : " to ", text(bounds.max));
  }
  return low ? " of at least " + text(bounds.min) : "";
}

std::string allowed(const Field& field, Kind kind) {
  switch (kind) {
    case Kind::kBool:
      return "true or false";
    case Kind::kInteger:
      return "an integer" + bounds_text(field.bounds, true);
    case Kind::kNumber:
      return "a number" + bounds_text(field.bounds, false);
    case Kind::kText:
      if (!field.choices.empty()) {
        return quoted_choices(field.choices);
      }
      return field.not_empty ? "a text that is not empty" : "a text";
    case Kind::kList:
      return "a list";
    case Kind::kObject:
      return "an object";
    case Kind::kAny:
      return "any value";
  }
  return "?";
}

std::string number_text(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.begin(), text.end(), value).ptr;
  return std::string(text.begin(), end);
}

std::string shown(const OrderedJson& value) {
  if (value.is_object()) {
    return "an object";
  }
  if (value.is_array() && !few_numbers(value)) {
    return "a list";
  }
  return value.is_string() ? quoted_briefly(value.get<std::string>()) : value.dump();
}

bool to_integer(const OrderedJson& value, std::int64_t& into) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    into = static_cast<std::int64_t>(number);
    return number <= std::numeric_limits<std::int64_t>::max();
  }
  if (value.is_number_integer()) {
    into = value.get<std::int64_t>();
    return true;
  }
  // Whole numbers may be written as 5e8, as people write large sizes.
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (number >= -kTwoTo63 && number < kTwoTo63) {
      into = static_cast<std::int64_t>(number);
      return static_cast<double>(into) == number;
    }
  }
  return false;
}

int whole_number(std::string_view text) {
  int number = 0;
  const bool digits = !text.empty() && text.size() <= 6 && text.front() != '0' &&
                      text.find_first_not_of("0123456789") == std::string_view::npos;
  if (digits) {
    std::from_chars(text.data(), text.data() + text.size(), number);
  }
  return number;
}

} // namespace tessera::form
