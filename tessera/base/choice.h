#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {

/// An enumeration whose values, counted from 0, have texts: `choice_names(E)`, found in the
/// enumeration's namespace, returns an array of them.
template <typename E>
concept NamedEnum = std::is_enum_v<E> && requires(E value) {
  { choice_names(value)[0] } -> std::convertible_to<std::string_view>;
};

template <NamedEnum E>
constexpr std::string_view text_of(E value) {
  return choice_names(value)[static_cast<std::size_t>(value)];
}

/// Returns the value of this text, or nothing.
template <NamedEnum E>
constexpr std::optional<E> choice_of(std::string_view text) {
  std::size_t i = 0;
  for (const std::string_view name : choice_names(E{})) {
    if (name == text) {
      return static_cast<E>(i);
    }
    ++i;
  }
  return std::nullopt;
}

template <NamedEnum E>
std::vector<std::string> all_choices() {
  const auto names = choice_names(E{});
  return {names.begin(), names.end()};
}

/// Returns `"a", "b" or "c"`: a closed set of texts, for messages.
std::string quoted_choices(const std::vector<std::string>& names);

template <typename T>
concept TextLike = std::convertible_to<const T&, std::string_view>;

/// A value of a closed set that can be written as its enumerator and as its text:
///   config.pipeline = Pipeline::kSimple;
///   config.pipeline = "simple";
/// Throws: ConfigError that lists what is allowed, when it is made from another text.
template <NamedEnum E>
class Choice {
 public:
  constexpr Choice() = default;
  constexpr Choice(E value) : value_(value) {}

  template <TextLike T>
  Choice(const T& text) {
    const std::optional<E> found = choice_of<E>(text);
    if (!found) {
      throw ConfigError(
          str("found \"", std::string_view(text), "\"; write ", quoted_choices(all_choices<E>())));
    }
    value_ = *found;
  }

  constexpr E value() const {
    return value_;
  }
  constexpr std::string_view text() const {
    return text_of(value_);
  }
  constexpr operator std::string_view() const {
    return text();
  }
  operator std::string() const {
    return std::string(text());
  }

  constexpr bool operator==(const Choice&) const = default;
  constexpr bool operator==(E other) const {
    return value_ == other;
  }
  template <TextLike T>
  requires(!std::same_as<T, Choice>) constexpr bool operator==(const T& other) const {
    return text() == std::string_view(other);
  }
  friend std::ostream& operator<<(std::ostream& out, const Choice& choice) {
    return out << choice.text();
  }

 private:
  E value_{};
};

} // namespace tessera
