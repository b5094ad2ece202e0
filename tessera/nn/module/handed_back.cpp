#include <algorithm>

#include "tessera/nn/module/module_call.h"

namespace tessera::detail {

bool same_packed(const c10::IValue& one, const c10::IValue& other) {
  if (one.isTensor() && other.isTensor()) {
    return one.toTensor().is_same(other.toTensor());
  }
  if (one.isTuple() && other.isTuple()) {
    const auto& left = one.toTupleRef().elements();
    const auto& right = other.toTupleRef().elements();
    return std::equal(left.begin(), left.end(), right.begin(), right.end(), same_packed);
  }
  if (one.isList() && other.isList()) {
    const auto left = one.toListRef();
    const auto right = other.toListRef();
    return std::equal(left.begin(), left.end(), right.begin(), right.end(), same_packed);
  }
  if (one.isGenericDict() && other.isGenericDict()) {
    const auto left = one.toGenericDict();
    const auto right = other.toGenericDict();
    return std::equal(
        left.begin(), left.end(), right.begin(), right.end(), [](const auto& a, const auto& b) {
          return same_packed(a.key(), b.key()) && same_packed(a.value(), b.value());
        });
  }
  return one == other;
}

} // namespace tessera::detail
