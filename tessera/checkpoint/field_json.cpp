#include "tessera/checkpoint/field_json.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/checkpoint/json.h"

namespace tessera::checkpoint {

namespace {

using nlohmann::json;

// Non-finite numbers, which JSON lacks.
const char* const kNumberKey = "number";
const char* const kTupleKey = "tuple";

json to_json(const c10::IValue& value, const std::string& what) {
  if (value.isBool()) {
    return value.toBool();
  }
  if (value.isInt()) {
    return value.toInt();
  }
  if (value.isDouble()) {
    const double number = value.toDouble();
    if (std::isfinite(number)) {
      return number;
    }
    return {{kNumberKey, std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf"}};
  }
  if (value.isString()) {
    return value.toStringRef();
  }
  if (value.isNone()) {
    return nullptr;
  }
  if (value.isTuple()) {
    json elements = json::array();
    for (const auto& element : value.toTupleRef().elements()) {
      elements.push_back(to_json(element, what));
    }
    return {{kTupleKey, elements}};
  }
  if (value.isIntList()) {
    return value.toIntVector();
  }
  if (value.isDoubleList()) {
    json elements = json::array();
    for (const double element : value.toDoubleVector()) {
      elements.push_back(to_json(element, what));
    }
    return elements;
  }
  throw CheckpointError(
      str(what,
          ": a value of kind ",
          value.tagKind(),
          " cannot be saved; use a number, boolean, string, or a tuple or list "
          "of numbers"));
}

c10::IValue from_json(const json& value, const std::string& what) {
  switch (value.type()) {
    case json::value_t::null:
      return {};
    case json::value_t::boolean:
      return value.get<bool>();
    case json::value_t::number_integer:
      return value.get<std::int64_t>();
    case json::value_t::number_unsigned:
      if (value.get<std::uint64_t>() <=
          static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return value.get<std::int64_t>();
      }
      break;
    case json::value_t::number_float:
      return value.get<double>();
    case json::value_t::string:
      return value.get<std::string>();
    case json::value_t::array: {
      const bool integers = std::all_of(value.begin(), value.end(), [](const json& element) {
        return element.is_number_integer();
      });
      if (integers) {
        return value.get<std::vector<std::int64_t>>();
      }
      std::vector<double> numbers;
      for (const auto& element : value) {
        const c10::IValue number = from_json(element, what);
        if (!number.isDouble()) {
          throw CheckpointError(str(what, ": a list holds numbers only, found ", brief(value)));
        }
        numbers.push_back(number.toDouble());
      }
      return numbers;
    }
    case json::value_t::object:
      if (value.size() == 1 && value.contains(kTupleKey) && value[kTupleKey].is_array()) {
        std::vector<c10::IValue> elements;
        for (const auto& element : value[kTupleKey]) {
          elements.push_back(from_json(element, what));
        }
        return c10::ivalue::Tuple::create(std::move(elements));
      }
      if (value == json{{kNumberKey, "nan"}}) {
        return std::numeric_limits<double>::quiet_NaN();
      }
      if (value == json{{kNumberKey, "inf"}}) {
        return std::numeric_limits<double>::infinity();
      }
      if (value == json{{kNumberKey, "-inf"}}) {
        return -std::numeric_limits<double>::infinity();
      }
      break;
    default:
      break;
  }
  throw CheckpointError(
      str(what, ": expected a number, boolean, string, list or tuple, found ", brief(value)));
}

} // namespace

json fields_to_json(const Fields& fields, const std::string& what) {
  json object = json::object();
  for (const auto& [name, value] : fields) {
    object[name] = to_json(value, str(what, ": \"", name, "\""));
  }
  return object;
}

Fields fields_from_json(const json& object, const std::string& what) {
  if (!object.is_object()) {
    throw CheckpointError(str(what, ": expected an object, found ", brief(object)));
  }
  Fields fields;
  for (const auto& item : object.items()) {
    fields[item.key()] = from_json(item.value(), str(what, ": \"", item.key(), "\""));
  }
  return fields;
}

} // namespace tessera::checkpoint
