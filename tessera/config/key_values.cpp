#include <algorithm>
#include <type_traits>

#include "tessera/base/json/kinds.h"
#include "tessera/config/keys.h"

namespace tessera::config {

namespace {

// The type of a key's values: its member's without optional; void for refused names.
template <typename M>
struct ValueOf {
  using type = void;
};
template <typename T>
struct ValueOf<T Config::*> {
  using type = T;
};
template <typename T>
struct ValueOf<std::optional<T> Config::*> {
  using type = T;
};

// `visit` of the member, and as its template argument the type of the key's values.
template <typename Visit>
auto with_member(const Key& key, Visit visit) {
  return std::visit(
      [&](auto member) {
        return visit.template operator()<typename ValueOf<decltype(member)>::type>(member);
      },
      key.field);
}

template <typename T>
Value widen(const T& value) {
  if constexpr (std::is_same_v<T, int>) {
    return std::int64_t{value};
  } else if constexpr (form::is_choice<T>) {
    return std::string(value.text());
  } else {
    return value;
  }
}

form::Bounds bounds_of(const Key& key) {
  return {.min = key.min, .max = key.max, .above_min = key.open};
}

} // namespace

const Key* find_key(std::string_view name) {
  const auto found = std::find_if(keys().begin(), keys().end(), [&](const Key& key) {
    return key.name == name ||
           std::find(key.aliases.begin(), key.aliases.end(), name) != key.aliases.end();
  });
  return found == keys().end() ? nullptr : &*found;
}

Type type_of(const Key& key) {
  return with_member(key, []<typename T>(auto /*member*/) {
    if constexpr (std::is_void_v<T>) {
      return Type::kNone;
    } else if constexpr (std::is_same_v<T, bool>) {
      return Type::kBool;
    } else if constexpr (std::is_integral_v<T>) {
      return Type::kInteger;
    } else if constexpr (std::is_floating_point_v<T>) {
      return Type::kNumber;
    } else {
      return form::is_scalar<T> ? Type::kText : form::is_list<T> ? Type::kList : Type::kMap;
    }
  });
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
    case Type::kList:
      return "list of integers";
    case Type::kNone:
      return "-";
  }
  return "?";
}

std::vector<std::string> choices_of(const Key& key) {
  return with_member(key, []<typename T>(auto /*member*/) -> std::vector<std::string> {
    if constexpr (form::is_choice<T>) {
      return form::choices_of<T>({.name = ""});
    } else {
      return {};
    }
  });
}

Value get(const Key& key, const Config& config) {
  return with_member(key, [&]<typename T>(auto member) -> Value {
    if constexpr (std::is_void_v<T>) {
      return {};
    } else {
      const auto& held = config.*member;
      if constexpr (form::is_map<T> || form::is_list<T>) {
        return held.empty() ? Value{} : Value{held};
      } else if constexpr (!std::is_same_v<std::decay_t<decltype(held)>, T>) {
        return held.has_value() ? widen(*held) : Value{};
      } else {
        return widen(held);
      }
    }
  });
}

void set(const Key& key, Config& config, const Value& value) {
  TESSERA_CHECK(in_range(key, value), key.name, " = ", to_text(value));
  with_member(key, [&]<typename T>(auto member) {
    if constexpr (std::is_same_v<T, int>) {
      config.*member = static_cast<int>(std::get<std::int64_t>(value));
    } else if constexpr (form::is_choice<T>) {
      config.*member = std::get<std::string>(value);
    } else if constexpr (!std::is_void_v<T>) {
      config.*member = std::get<T>(value);
    }
  });
}

bool in_range(const Key& key, const Value& value) {
  const form::Bounds bounds = bounds_of(key);
  switch (type_of(key)) {
    case Type::kBool:
      return std::holds_alternative<bool>(value);
    case Type::kInteger: {
      const bool narrow =
          with_member(key, []<typename T>(auto /*member*/) { return std::is_same_v<T, int>; });
      const auto* number = std::get_if<std::int64_t>(&value);
      return number != nullptr && bounds.contain(static_cast<double>(*number)) &&
             (!narrow || std::in_range<int>(*number));
    }
    case Type::kNumber: {
      const auto* number = std::get_if<double>(&value);
      return number != nullptr && bounds.contain(*number);
    }
    case Type::kText: {
      const auto* text = std::get_if<std::string>(&value);
      const auto& choices = key.choices;
      return text != nullptr && !(key.open && text->empty()) &&
             (choices.empty() || std::find(choices.begin(), choices.end(), *text) != choices.end());
    }
    case Type::kMap: {
      const auto* map = std::get_if<std::map<std::string, int>>(&value);
      return map != nullptr && std::all_of(map->begin(), map->end(), [&](const auto& entry) {
               return bounds.contain(entry.second);
             });
    }
    case Type::kList: {
      const auto* list = std::get_if<std::vector<int>>(&value);
      return list != nullptr && std::all_of(list->begin(), list->end(), [&](int entry) {
               return bounds.contain(entry);
             });
    }
    case Type::kNone:
      return false;
  }
  return false;
}

std::string allowed(const Key& key) {
  const form::Field field{
      .name = key.name.c_str(),
      .bounds = bounds_of(key),
      .choices = key.choices,
      .not_empty = key.open};
  switch (type_of(key)) {
    case Type::kBool:
      return form::allowed(field, form::Kind::kBool);
    case Type::kInteger:
      return form::allowed(field, form::Kind::kInteger);
    case Type::kNumber:
      return form::allowed(field, form::Kind::kNumber);
    case Type::kText:
      return form::allowed(field, form::Kind::kText);
    case Type::kMap:
      return "an object whose values are integers" + form::bounds_text(field.bounds, true);
    case Type::kList:
      return "a list of integers" + form::bounds_text(field.bounds, true);
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
      return form::number_text(number);
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
    std::string operator()(const std::vector<int>& list) const {
      std::string text = "[";
      for (const int number : list) {
        text += text.size() == 1 ? str(number) : str(", ", number);
      }
      return text + "]";
    }
  };
  return std::visit(Writer{}, value);
}

} // namespace tessera::config
