#pragma once

#include <type_traits>

#include <ATen/core/ivalue.h>

#include "tessera/tensor/value.h"

// A forward may change what its caller passed by reference: a list of skip connections that the
// blocks of an encoder append to. Where the call runs on another rank, or again in the backward,
// its arguments are copies, so what it left in them is given back beside the result.
namespace tessera::detail {

/// A parameter of forward whose value the call may change for its caller.
template <typename Arg>
inline constexpr bool kHandedBack =
    std::is_lvalue_reference_v<Arg> && !std::is_const_v<std::remove_reference_t<Arg>>;

/// Whether two packed values are the same tensors in the same places, with equal values of other
/// types.
bool same_packed(const c10::IValue& one, const c10::IValue& other);

/// What a call left in a parameter that got the value `given`: None where that is the same.
template <typename Arg, typename T>
c10::IValue left_in(const c10::IValue& given, const T& left) {
  if constexpr (kHandedBack<Arg>) {
    c10::IValue packed = pack<std::decay_t<Arg>>(left);
    return same_packed(given, packed) ? c10::IValue() : packed;
  } else {
    return {};
  }
}

/// Gives the caller's variable what `left_in` found.
template <typename Arg, typename T>
void assign_left(const c10::IValue& left, T& variable) {
  if constexpr (kHandedBack<Arg>) {
    if (!left.isNone()) {
      variable = unpack<std::decay_t<Arg>>(left);
    }
  }
}

} // namespace tessera::detail
