#include "tessera/state/fields.h"

#include <algorithm>
#include <cmath>

namespace tessera::state {

namespace {

bool same_number(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

bool same_value(const c10::IValue& a, const c10::IValue& b) {
  if (a.isDouble() && b.isDouble()) {
    return same_number(a.toDouble(), b.toDouble());
  }
  if (a.isDoubleList() && b.isDoubleList()) {
    const auto left = a.toDoubleVector();
    const auto right = b.toDoubleVector();
    return std::equal(left.begin(), left.end(), right.begin(), right.end(), same_number);
  }
  if (a.isTuple() && b.isTuple()) {
    const auto& left = a.toTupleRef().elements();
    const auto& right = b.toTupleRef().elements();
    return std::equal(left.begin(), left.end(), right.begin(), right.end(), same_value);
  }
  return a == b;
}

} // namespace

bool same_fields(const Fields& a, const Fields& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && same_value(x.second, y.second);
  });
}

} // namespace tessera::state
