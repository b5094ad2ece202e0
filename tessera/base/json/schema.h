#pragma once

// The JSON schema (draft 2020-12) of described structs, see field.h. Private to .cpp files.

#include <cmath>

#include "tessera/base/json/write.h"

namespace tessera::form {

template <typename T>
OrderedJson schema_of(const Field& field, OrderedJson& definitions);

/// The visitor that describes a struct's object. A struct that is given a name by `define` becomes
/// an entry of the definitions, and is referred to.
class Schema {
 public:
  static constexpr bool kReads = false;

  explicit Schema(OrderedJson& definitions) : definitions_(definitions) {}

  void define(const char* name) {
    name_ = name;
  }

  void allow_unknown() {
    closed_ = false;
  }

  void head(const char* format, int version) {
    if (format != nullptr) {
      add("format", {{"const", format}}, true);
    }
    add("version", {{"const", version}}, true);
  }

  template <typename M, typename... Context>
  void operator()(const Field& field, const M& member, const Context&...) {
    OrderedJson schema = schema_of<M>(field, definitions_);
    if (*field.doc != '\0') {
      schema["description"] = field.doc;
    }
    if constexpr (is_scalar<M>) {
      if (field.presence == Presence::kOptional) {
        schema["default"] = to_value(member, field);
      }
    }
    add(field.name, std::move(schema), field.presence == Presence::kRequired);
  }

  template <typename Broken>
  void check(Broken) {}

  /// Returns the object's schema, or the reference to it.
  OrderedJson take() {
    OrderedJson schema = {{"type", "object"}, {"additionalProperties", !closed_}};
    if (!required_.empty()) {
      schema["required"] = required_;
    }
    schema["properties"] = std::move(properties_);
    if (name_ == nullptr) {
      return schema;
    }
    definitions_[name_] = std::move(schema);
    return {{"$ref", str("#/$defs/", name_)}};
  }

 private:
  void add(const char* name, OrderedJson schema, bool required) {
    if (required) {
      required_.emplace_back(name);
    }
    properties_[name] = std::move(schema);
  }

  OrderedJson& definitions_;
  OrderedJson properties_ = OrderedJson::object();
  std::vector<std::string> required_;
  const char* name_ = nullptr;
  bool closed_ = true;
};

inline void add_bounds(OrderedJson& schema, const Bounds& bounds) {
  const auto add = [&](const char* name, double bound) {
    // Whole numbers stand without a point, as people write them.
    schema[name] = OrderedJson::parse(number_text(bound));
  };
  if (std::isfinite(bounds.min)) {
    add(bounds.above_min ? "exclusiveMinimum" : "minimum", bounds.min);
  }
  if (std::isfinite(bounds.max)) {
    add(bounds.below_max ? "exclusiveMaximum" : "maximum", bounds.max);
  }
}

template <typename T>
OrderedJson scalar_schema(const Field& field) {
  constexpr Kind kKind = kind_of<T>();
  if constexpr (kKind == Kind::kText) {
    const auto choices = choices_of<T>(field);
    if (!choices.empty()) {
      return {{"enum", choices}};
    }
    OrderedJson schema = {{"type", "string"}};
    if (field.not_empty) {
      schema["minLength"] = 1;
    }
    return schema;
  } else if constexpr (kKind == Kind::kBool) {
    return {{"type", "boolean"}};
  } else {
    OrderedJson schema = {{"type", kKind == Kind::kInteger ? "integer" : "number"}};
    add_bounds(schema, field.bounds);
    return schema;
  }
}

template <typename T>
OrderedJson schema_of(const Field& field, OrderedJson& definitions) {
  if constexpr (is_optional<T>) {
    return schema_of<typename T::value_type>(field, definitions);
  } else if constexpr (CustomForm<T>) {
    return Custom<T>::schema();
  } else if constexpr (std::is_same_v<T, OrderedJson>) {
    return OrderedJson::object();
  } else if constexpr (is_scalar<T>) {
    return scalar_schema<T>(field);
  } else if constexpr (is_list<T>) {
    OrderedJson schema = {{"type", "array"}};
    if (field.not_empty) {
      schema["minItems"] = 1;
    }
    schema["items"] = schema_of<typename T::value_type>(field, definitions);
    return schema;
  } else if constexpr (is_map<T> || is_by_name<T>) {
    OrderedJson schema = {{"type", "object"}};
    if (field.not_empty) {
      schema["minProperties"] = 1;
    }
    if constexpr (is_by_name<T>) {
      schema["additionalProperties"] = schema_of<typename T::Entry>(field, definitions);
    } else {
      if (std::is_same_v<typename T::key_type, int>) {
        schema["propertyNames"] = {{"pattern", "^[1-9][0-9]{0,5}$"}};
      } else if (!field.choices.empty()) {
        schema["propertyNames"] = {{"enum", field.choices}};
      }
      schema["additionalProperties"] = schema_of<typename T::mapped_type>(field, definitions);
    }
    return schema;
  } else {
    Schema visitor(definitions);
    T value{};
    describe(visitor, value);
    return visitor.take();
  }
}

} // namespace tessera::form
