#pragma once

#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

namespace tessera {

/// Calls `visit(tensor)` for every tensor inside `value`, in a fixed order;
/// None, numbers and strings are skipped.
template <typename Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTuple()) {
    for (const auto& element : value.toTupleRef().elements()) {
      for_each_tensor(element, visit);
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      for_each_tensor(element, visit);
    }
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      for_each_tensor(entry.value(), visit);
    }
  }
}

/// Returns the same structure with every tensor replaced by `map(tensor)`, which may return an
/// IValue of another kind.
template <typename Map>
c10::IValue map_tensors(const c10::IValue& value, Map&& map) {
  if (value.isTensor()) {
    return c10::IValue(map(value.toTensor()));
  }
  if (value.isTuple()) {
    std::vector<c10::IValue> elements;
    for (const auto& element : value.toTupleRef().elements()) {
      elements.push_back(map_tensors(element, map));
    }
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  if (value.isList()) {
    std::vector<c10::IValue> elements;
    bool tensors = true;
    for (const c10::IValue& element : value.toListRef()) {
      elements.push_back(map_tensors(element, map));
      tensors = tensors && elements.back().isTensor();
    }
    // A list stays a list; it loses its type only where tensors are replaced.
    const c10::TypePtr type = value.toList().elementType();
    c10::impl::GenericList to(
        !tensors && type->kind() == c10::TypeKind::TensorType ? c10::TypePtr(c10::AnyType::get())
                                                              : type);
    for (c10::IValue& element : elements) {
      to.push_back(std::move(element));
    }
    return to;
  }
  if (value.isGenericDict()) {
    const auto from = value.toGenericDict();
    c10::impl::GenericDict to(from.keyType(), from.valueType());
    for (const auto& entry : from) {
      to.insert(entry.key(), map_tensors(entry.value(), map));
    }
    return to;
  }
  return value;
}

} // namespace tessera
