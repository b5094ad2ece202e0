#pragma once

#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "tessera/nn/module/interceptor.h"
#include "tessera/nn/module/marks.h"
#include "tessera/nn/module/recomputed_call.h"
#include "tessera/tensor/value.h"

namespace tessera::nn {

/// The forward of libtorch's Linear, whose product a region may keep (recompute/kept_products.h).
at::Tensor linear_forward(torch::nn::LinearImpl& linear, const at::Tensor& x);
/// The forward of libtorch's Dropout, whose mask a region may keep (recompute/kept_dropout.h).
at::Tensor dropout_forward(torch::nn::DropoutImpl& dropout, const at::Tensor& x);

/// A module's own forward. The qualified name reaches it also where it is virtual and the object's
/// class overrides it with a call of `dispatch`.
template <typename Impl, typename... Args>
decltype(auto) plain_forward(Impl& impl, Args&&... args) {
  if constexpr (std::is_same_v<Impl, torch::nn::LinearImpl>) {
    return linear_forward(impl, args...);
  } else if constexpr (std::is_same_v<Impl, torch::nn::DropoutImpl>) {
    return dropout_forward(impl, args...);
  } else {
    return impl.Impl::forward(std::forward<Args>(args)...);
  }
}

} // namespace tessera::nn

// A forward may change what its caller passed by reference, such as a list of skip connections that
// the blocks of an encoder append to. Where the call runs on another rank, or again in the
// backward, its arguments are copies, so their new values are returned beside the result.
namespace tessera::detail {

/// A parameter of forward whose value the call may change for its caller.
template <typename Arg>
inline constexpr bool kHandedBack =
    std::is_lvalue_reference_v<Arg> && !std::is_const_v<std::remove_reference_t<Arg>>;

/// Returns whether two packed values are the same tensors in the same places, with equal values of
/// other types.
bool same_packed(const c10::IValue& one, const c10::IValue& other);

/// Returns the value of a parameter after a call that passed `given`: None where it is unchanged.
template <typename Arg, typename T>
c10::IValue left_in(const c10::IValue& given, const T& left) {
  if constexpr (kHandedBack<Arg>) {
    c10::IValue packed = pack<std::decay_t<Arg>>(left);
    return same_packed(given, packed) ? c10::IValue() : packed;
  } else {
    return {};
  }
}

/// Assigns the result of `left_in` to the caller's variable.
template <typename Arg, typename T>
void assign_left(const c10::IValue& left, T& variable) {
  if constexpr (kHandedBack<Arg>) {
    if (!left.isNone()) {
      variable = unpack<std::decay_t<Arg>>(left);
    }
  }
}

} // namespace tessera::detail

namespace tessera::detail {

/// One instantiation of a module call, known to every rank of the program by static
/// initialisation: any rank can run what any other rank asks for. `Args` are the parameter types
/// of Impl::forward, or the categories of the arguments where forward is overloaded.
template <typename Impl, typename... Args>
struct ModuleCall {
  using Result = decltype(std::declval<Impl&>().forward(std::declval<Args>()...));
  using Arguments = std::tuple<Stored<std::decay_t<Args>>...>;
  static constexpr bool kHandsBack = (kHandedBack<Args> || ...);

  /// Every call of a module of this class arrives here. Runs the plain forward, this thread's
  /// interceptor, or the module's replacement.
  static Result dispatch(Impl& impl, Args&&... args) {
    static_assert(!std::is_reference_v<Result>, "forward must return a value, not a reference");
    torch::nn::Module& target = nn::replacement_of(impl);
    nn::Interceptor* interceptor = nn::current_interceptor();
    // Naming the key here is what instantiates its registration.
    const nn::CallKey& known = key;
    const bool intercepted = interceptor != nullptr && interceptor->wants(target);
    if (!intercepted && &target == &impl && !nn::recomputation_of(target)) {
      return nn::plain_forward(impl, std::forward<Args>(args)...);
    }
    const c10::IValue packed = make_tuple_value({tessera::pack<std::decay_t<Args>>(args)...});
    c10::IValue result = intercepted ? interceptor->call(target, known, packed, -1, -1)
                                     : invoke(target, packed, -1, -1);
    if constexpr (kHandsBack) {
      const auto parts = result.toTuple();
      hand_back(*parts, std::index_sequence_for<Args...>{}, args...);
      result = parts->elements()[0];
    }
    if constexpr (!std::is_void_v<Result>) {
      return tessera::unpack<Result>(result);
    }
  }

  static c10::IValue
  invoke(torch::nn::Module& module, const c10::IValue& args, int first, int last) {
    return nn::recomputes() ? nn::invoke_module(module, args, first, last, &invoke_plain)
                            : invoke_plain(module, args, first, last);
  }

  static c10::IValue
  invoke_plain(torch::nn::Module& module, const c10::IValue& args, int first, int last) {
    if constexpr (kHandsBack) {
      return run_and_hand_back(module, args, std::index_sequence_for<Args...>{});
    } else {
      return run_module(module, args, first, last);
    }
  }

  static c10::IValue
  run_module(torch::nn::Module& module, const c10::IValue& args, int first, int last) {
    if (const nn::CallAdapter* adapter = nn::adapter_of(module)) {
      return (*adapter)(module, args);
    }
    if constexpr (requires(Impl & impl) { impl.run_range(args, 0, 0); }) {
      if (first >= 0) {
        return dynamic_cast<Impl&>(module).run_range(args, first, last);
      }
    }
    auto values = unpack<Arguments>(args);
    return run(dynamic_cast<Impl&>(module), values, std::index_sequence_for<Args...>());
  }

  template <std::size_t... I>
  static c10::IValue run(Impl& impl, Arguments& values, std::index_sequence<I...>) {
    if constexpr (std::is_void_v<Result>) {
      nn::plain_forward(impl, static_cast<Args&&>(std::get<I>(values))...);
      return {};
    } else {
      return tessera::pack<std::decay_t<Result>>(
          nn::plain_forward(impl, static_cast<Args&&>(std::get<I>(values))...));
    }
  }

  /// The result, and for each parameter the value that the call left in it, where that is another.
  template <std::size_t... I>
  static c10::IValue run_and_hand_back(
      torch::nn::Module& module,
      const c10::IValue& args,
      std::index_sequence<I...> indices) {
    if (const nn::CallAdapter* adapter = nn::adapter_of(module)) {
      return make_tuple_value({(*adapter)(module, args), ((void)I, c10::IValue())...});
    }
    auto values = unpack<Arguments>(args);
    const auto& given = args.toTupleRef().elements();
    c10::IValue result = run(dynamic_cast<Impl&>(module), values, indices);
    return make_tuple_value({std::move(result), left_in<Args>(given[I], std::get<I>(values))...});
  }

  template <std::size_t... I>
  static void
  hand_back(const c10::ivalue::Tuple& parts, std::index_sequence<I...> /*indices*/, Args&... args) {
    (assign_left<Args>(parts.elements()[I + 1], args), ...);
  }

  static const nn::CallKey key;
};

template <typename Impl, typename... Args>
const nn::CallKey ModuleCall<Impl, Args...>::key = nn::register_invoker(
    std::string(typeid(Impl).name()) + "(" + typeid(std::tuple<Args...>).name() + ")",
    &ModuleCall<Impl, Args...>::invoke);

/// What an argument of an overloaded or templated forward is packed as: a string literal becomes a
/// std::string, because a pointer means nothing on another rank.
template <typename Arg>
using Carried = std::conditional_t<
    std::is_same_v<std::decay_t<Arg>, const char*> || std::is_same_v<std::decay_t<Arg>, char*>,
    std::string,
    Arg>;

/// The parameter types of a forward that has exactly one overload, taken from the type of the
/// pointer to it. An inherited forward (BatchNorm2d, ReLU) names its base class there; calls go by
/// the class that the holder makes.
template <typename Pointer>
struct Signature;

template <typename R, typename Base, typename... Args>
struct Signature<R (Base::*)(Args...)> {
  template <typename Impl>
  using Call = ModuleCall<Impl, Args...>;
  using Function = R(Args...);
  static constexpr int arity = sizeof...(Args);
};
template <typename R, typename Base, typename... Args>
struct Signature<R (Base::*)(Args...) const> : Signature<R (Base::*)(Args...)> {
  using Function = R(Args...) const;
};
template <typename R, typename Base, typename... Args>
struct Signature<R (Base::*)(Args...) noexcept> : Signature<R (Base::*)(Args...)> {};
template <typename R, typename Base, typename... Args>
struct Signature<R (Base::*)(Args...) const noexcept> : Signature<R (Base::*)(Args...) const> {};

/// Whether Impl::forward exists, is public and has one overload that is no template.
template <typename Impl>
concept HasOneForward = requires {
  typename Signature<decltype(&Impl::forward)>::Function;
};

template <typename Impl>
using SignatureOf = Signature<decltype(&Impl::forward)>;

/// Whether Impl has one forward, of more than `given` parameters. A concept of its own, because
/// some compilers look at every operand of a requires-clause at once.
template <typename Impl, std::size_t given>
concept TakesMoreThan = HasOneForward<Impl> && given < SignatureOf<Impl>::arity;

} // namespace tessera::detail
