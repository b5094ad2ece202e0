#include <array>
#include <charconv>
#include <cmath>
#include <type_traits>

#include "tessera/base/error.h"
#include "tessera/config/keys.h"

namespace tessera::config {

namespace {

template <typename T>
struct Member;
template <typename T>
struct Member<T Config::*> {
  using type = T;
};
template <typename T>
struct Plain {
  using type = T;
};
template <typename T>
struct Plain<std::optional<T>> {
  using type = T;
};

// The key's C++ type without optional; void for refused names.
template <typename M>
constexpr Type type_for() {
  if constexpr (std::is_same_v<M, std::monostate>) {
    return Type::kNone;
  } else {
    using T = typename Plain<typename Member<M>::type>::type;
    if constexpr (std::is_same_v<T, bool>) {
      return Type::kBool;
    } else if constexpr (std::is_integral_v<T>) {
      return Type::kInteger;
    } else if constexpr (std::is_floating_point_v<T>) {
      return Type::kNumber;
    } else if constexpr (std::is_same_v<T, std::string>) {
      return Type::kText;
    } else {
      return Type::kMap;
    }
  }
}

template <typename T>
Value widen(const T& value) {
  if constexpr (std::is_same_v<T, int>) {
    return std::int64_t{value};
  } else {
    return value;
  }
}

bool number_in_range(const Key& key, double value) {
  return (key.open ? value > key.min : value >= key.min) && value <= key.max;
}

// The shortest form that reads back to the same number.
std::string number_text(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.begin(), text.end(), value).ptr;
  return std::string(text.begin(), end);
}

std::string integer_text(double bound) {
  return str(static_cast<std::int64_t>(bound));
}

bool holds_int(const Key& key) {
  return std::holds_alternative<int Config::*>(key.field) ||
         std::holds_alternative<std::optional<int> Config::*>(key.field) ||
         std::holds_alternative<std::map<std::string, int> Config::*>(key.field);
}

std::string bounds(const Key& key, bool integer) {
  const auto text = [&](double bound) {
    return integer ? integer_text(bound) : number_text(bound);
  };
  const bool low = std::isfinite(key.min);
  const bool high = std::isfinite(key.max);
  if (low && key.open) {
    return str(" greater than ", text(key.min), high ? " and at most " + text(key.max) : "");
  }
  if (low && high) {
    return str(" from ", text(key.min), " to ", text(key.max));
  }
  return low ? " of at least " + text(key.min) : "";
}

} // namespace

const Key* find_key(std::string_view name) {
  for (const Key& key : keys()) {
    if (key.name == name) {
      return &key;
    }
    for (const std::string& alias : key.aliases) {
      if (alias == name) {
        return &key;
      }
    }
  }
  return nullptr;
}

Type type_of(const Key& key) {
  return std::visit([](auto member) { return type_for<decltype(member)>(); }, key.field);
}

std::string_view name_of(Type type) {
  switch (type) {
    case Type::kBool:
      return "true or false";
    case Type::kInteger:
      return "integer";
    case Type::kNumber:
      return "number";
    case Type::kText:
      return "text";
    case Type::kMap:
      return "object of integers";
    case Type::kNone:
      return "-";
  }
  return "?";
}

Value get(const Key& key, const Config& config) {
  return std::visit(
      [&](auto member) -> Value {
        using M = decltype(member);
        if constexpr (std::is_same_v<M, std::monostate>) {
          return {};
        } else {
          const auto& held = config.*member;
          using T = std::decay_t<decltype(held)>;
          if constexpr (std::is_same_v<T, std::map<std::string, int>>) {
            return held.empty() ? Value{} : Value{held};
          } else if constexpr (!std::is_same_v<typename Plain<T>::type, T>) {
            return held.has_value() ? widen(*held) : Value{};
          } else {
            return widen(held);
          }
        }
      },
      key.field);
}

void set(const Key& key, Config& config, const Value& value) {
  TESSERA_CHECK(in_range(key, value), key.name, " = ", to_text(value));
  std::visit(
      [&](auto member) {
        using M = decltype(member);
        if constexpr (!std::is_same_v<M, std::monostate>) {
          using T = typename Plain<typename Member<M>::type>::type;
          if constexpr (std::is_same_v<T, int>) {
            config.*member = static_cast<int>(std::get<std::int64_t>(value));
          } else {
            config.*member = std::get<T>(value);
          }
        }
      },
      key.field);
}

bool in_range(const Key& key, const Value& value) {
  switch (type_of(key)) {
    case Type::kBool:
      return std::holds_alternative<bool>(value);
    case Type::kInteger: {
      const auto* number = std::get_if<std::int64_t>(&value);
      return number != nullptr && number_in_range(key, static_cast<double>(*number)) &&
             (!holds_int(key) || *number <= std::numeric_limits<int>::max());
    }
    case Type::kNumber: {
      const auto* number = std::get_if<double>(&value);
      return number != nullptr && number_in_range(key, *number);
    }
    case Type::kText: {
      const auto* text = std::get_if<std::string>(&value);
      if (text == nullptr || (key.open && text->empty())) {
        return false;
      }
      if (key.choices.empty()) {
        return true;
      }
      for (const std::string& choice : key.choices) {
        if (choice == *text) {
          return true;
        }
      }
      return false;
    }
    case Type::kMap: {
      const auto* map = std::get_if<std::map<std::string, int>>(&value);
      if (map == nullptr) {
        return false;
      }
      for (const auto& [path, number] : *map) {
        if (!number_in_range(key, number)) {
          return false;
        }
      }
      return true;
    }
    case Type::kNone:
      return false;
  }
  return false;
}

std::string allowed(const Key& key) {
  switch (type_of(key)) {
    case Type::kBool:
      return "true or false";
    case Type::kInteger:
      return "an integer" + bounds(key, true);
    case Type::kNumber:
      return "a number" + bounds(key, false);
    case Type::kText: {
      if (key.choices.empty()) {
        return key.open ? "a text that is not empty" : "a text";
      }
      std::string list;
      for (std::size_t i = 0; i < key.choices.size(); ++i) {
        const bool last = i + 1 == key.choices.size();
        list += i == 0 ? "" : (last ? " or " : ", ");
        list += "\"" + key.choices[i] + "\"";
      }
      return list;
    }
    case Type::kMap:
      return "an object whose values are integers" + bounds(key, true);
    case Type::kNone:
      return "nothing";
  }
  return "?";
}

std::string default_of(const Key& key) {
  if (!key.unsaid.empty()) {
    return key.unsaid;
  }
  return key.status == Status::kRefused ? "-" : to_text(get(key, Config{}));
}

std::string to_text(const Value& value) {
  struct Writer {
    std::string operator()(std::monostate) const {
      return "nothing";
    }
    std::string operator()(bool flag) const {
      return flag ? "true" : "false";
    }
    std::string operator()(std::int64_t number) const {
      return str(number);
    }
    std::string operator()(double number) const {
      return number_text(number);
    }
    std::string operator()(const std::string& text) const {
      return "\"" + text + "\"";
    }
    std::string operator()(const std::map<std::string, int>& map) const {
      std::string text;
      for (const auto& [path, rank] : map) {
        text += text.empty() ? "{" : ", ";
        text += str("\"", path, "\": ", rank);
      }
      return text.empty() ? "{}" : text + "}";
    }
  };
  return std::visit(Writer{}, value);
}

} // namespace tessera::config
