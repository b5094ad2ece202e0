#pragma once

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/tensor/value.h"

// How the types of a registration's hooks are read. Nothing here is for users.
namespace tessera::detail {

/// Class name without namespace and "Impl", for people.
std::string short_type_name(const std::type_info& type);

} // namespace tessera::detail

namespace tessera::nn::detail {

template <typename T, typename = void>
struct ImplOfHolder {
  using type = T;
};
template <typename T>
struct ImplOfHolder<T, std::void_t<typename T::ImplType>> {
  using type = typename T::ImplType;
};
template <typename T>
using ImplOf = typename ImplOfHolder<T>::type;

/// @cond  Doxygen takes a base class of the same template for a recursion.
// Argument types, decayed, of something that is called in one way only.
template <typename Call>
struct ArgumentsOf : ArgumentsOf<decltype(&Call::operator())> {};
template <typename R, typename... Args>
struct ArgumentsOf<R (*)(Args...)> {
  using type = std::tuple<std::decay_t<Args>...>;
};
template <typename R, typename C, typename... Args>
struct ArgumentsOf<R (C::*)(Args...)> : ArgumentsOf<R (*)(Args...)> {};
template <typename R, typename C, typename... Args>
struct ArgumentsOf<R (C::*)(Args...) const> : ArgumentsOf<R (*)(Args...)> {};

/// Whether a function may change what its caller passed.
template <typename Function>
inline constexpr bool takes_by_reference = false;
template <typename R, typename... Args>
inline constexpr bool takes_by_reference<R(Args...)> =
    ((std::is_lvalue_reference_v<Args> && !std::is_const_v<std::remove_reference_t<Args>>) || ...);
template <typename R, typename... Args>
inline constexpr bool takes_by_reference<R(Args...) const> = takes_by_reference<R(Args...)>;

template <typename Call>
using CallArguments = typename ArgumentsOf<std::decay_t<Call>>::type;
/// @endcond

template <typename Impl>
concept has_one_forward = requires {
  &Impl::forward;
};

template <typename Impl>
using ForwardArguments = CallArguments<decltype(&Impl::forward)>;

template <typename T>
struct IsTuple : std::false_type {};
template <typename... Ts>
struct IsTuple<std::tuple<Ts...>> : std::true_type {};

template <typename T>
auto as_tuple(T&& value) {
  if constexpr (IsTuple<std::decay_t<T>>::value) {
    return std::forward<T>(value);
  } else {
    return std::tuple<std::decay_t<T>>(std::forward<T>(value));
  }
}

template <typename Module, typename Arguments>
std::shared_ptr<Module> make_from(Arguments&& arguments) {
  if constexpr (IsTuple<std::decay_t<Arguments>>::value) {
    return std::apply(
        [](auto&&... values) {
          return std::make_shared<Module>(std::forward<decltype(values)>(values)...);
        },
        std::forward<Arguments>(arguments));
  } else {
    return std::make_shared<Module>(std::forward<Arguments>(arguments));
  }
}

// C++ does not tell default arguments; for these types they are nearly always
// the empty value, which packs as None.
template <typename T>
struct MayBeLeftOut : std::is_same<T, at::Tensor> {};
template <typename T>
struct MayBeLeftOut<std::optional<T>> : std::true_type {};

template <typename Arguments, std::size_t... I>
Arguments unpack_some(
    const std::vector<c10::IValue>& given,
    const std::string& of,
    std::index_sequence<I...>) {
  const auto value = [&](auto index) {
    using T = std::tuple_element_t<decltype(index)::value, Arguments>;
    if (decltype(index)::value >= given.size() && !MayBeLeftOut<T>::value) {
      throw ShapeError(
          str(of,
              " was called with ",
              given.size(),
              " arguments, its distributed implementation takes ",
              sizeof...(I),
              "; give all of them, or register a forward hook"));
    }
    return unpack<T>(
        decltype(index)::value < given.size() ? given[decltype(index)::value] : c10::IValue());
  };
  return Arguments{value(std::integral_constant<std::size_t, I>())...};
}

template <typename Arguments>
Arguments unpack_arguments(const c10::IValue& args, const std::string& of) {
  const auto given = tessera::detail::copy_elements(args);
  constexpr std::size_t size = std::tuple_size_v<Arguments>;
  if (given.size() > size) {
    throw ShapeError(
        str(of,
            " was called with ",
            given.size(),
            " arguments, its distributed implementation takes ",
            size,
            "; register a forward hook"));
  }
  return unpack_some<Arguments>(given, of, std::make_index_sequence<size>());
}

} // namespace tessera::nn::detail
