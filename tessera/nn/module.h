#pragma once

#include <memory>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include <torch/nn/pimpl.h>

#include "tessera/nn/interceptor.h"
#include "tessera/tensor/value.h"

namespace tessera {

namespace detail {

/// One instantiation of a module call, known to every rank of the program by
/// static initialisation: any rank can run what any other rank asks for.
template <typename Impl, typename... Args>
struct ModuleCall {
  // What forward returns for exactly these argument categories.
  using Result = decltype(std::declval<Impl&>().forward(std::declval<Args>()...));
  using Arguments = std::tuple<Stored<std::decay_t<Args>>...>;

  static c10::IValue
  invoke(torch::nn::Module& module, const c10::IValue& args, int first, int last) {
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
      impl.forward(static_cast<Args&&>(std::get<I>(values))...);
      return {};
    } else {
      return tessera::pack<std::decay_t<Result>>(
          impl.forward(static_cast<Args&&>(std::get<I>(values))...));
    }
  }

  static const nn::CallKey key;
};

template <typename Impl, typename... Args>
const nn::CallKey ModuleCall<Impl, Args...>::key = nn::register_invoker(
    std::string(typeid(Impl).name()) + "(" + typeid(std::tuple<Args...>).name() + ")",
    &ModuleCall<Impl, Args...>::invoke);

} // namespace detail

/// A module holder whose calls the runtime can run on another rank. Replaces
/// torch::nn::ModuleHolder: write TESSERA_MODULE(Net) where a libtorch script
/// has TORCH_MODULE(Net). Outside a step, and for modules that live on this
/// rank, `net(x)` is the plain call of `NetImpl::forward`.
///
/// Arguments and results may be anything tessera::Value knows.
/// Threads: as torch::nn::Module.
/// Source: Karakus et al. 2021, section 4.1.
template <typename Impl>
class Module : public torch::nn::ModuleHolder<Impl> {
  using Base = torch::nn::ModuleHolder<Impl>;

 public:
  using ImplType = Impl;

  Module() : Base() {
    nn::mark_interceptable(this->ptr());
  }
  // NOLINTNEXTLINE(google-explicit-constructor): as ModuleHolder
  Module(std::nullptr_t) : Base(nullptr) {}
  // NOLINTNEXTLINE(google-explicit-constructor): as ModuleHolder
  Module(std::shared_ptr<Impl> impl) : Base(std::move(impl)) {
    if (!this->is_empty()) {
      nn::mark_interceptable(this->ptr());
    }
  }
  template <
      typename Head,
      typename... Tail,
      typename = std::enable_if_t<
          !(std::is_base_of_v<Module, std::decay_t<Head>> && sizeof...(Tail) == 0) &&
          !std::is_convertible_v<Head, std::shared_ptr<Impl>>>>
  explicit Module(Head&& head, Tail&&... tail)
      : Base(std::forward<Head>(head), std::forward<Tail>(tail)...) {
    nn::mark_interceptable(this->ptr());
  }

  template <typename... Args>
  auto operator()(Args&&... args) const -> typename detail::ModuleCall<Impl, Args...>::Result {
    using Call = detail::ModuleCall<Impl, Args...>;
    using Result = typename Call::Result;
    Impl& impl = const_cast<Impl&>(**this);
    torch::nn::Module& target = nn::stand_in(impl);
    nn::Interceptor* interceptor = nn::current_interceptor();
    // Naming the key here is what instantiates its registration.
    const nn::CallKey& key = Call::key;
    const bool intercepted = interceptor != nullptr && interceptor->wants(target);
    if (!intercepted && &target == &impl) {
      return impl.forward(std::forward<Args>(args)...);
    }
    const c10::IValue packed =
        detail::make_tuple_value({tessera::pack<std::decay_t<Args>>(args)...});
    const c10::IValue result = intercepted ? interceptor->call(target, key, packed, -1, -1)
                                           : Call::invoke(target, packed, -1, -1);
    if constexpr (!std::is_void_v<Result>) {
      static_assert(!std::is_reference_v<Result>, "forward must return a value, not a reference");
      return tessera::unpack<Result>(result);
    }
  }
};

/// Modules created in this scope go to pp rank `index` (auto_partition: false).
using partition = nn::PartitionScope;

} // namespace tessera

/// Defines the holder `Name` of `NameImpl`, as TORCH_MODULE does.
#define TESSERA_MODULE(Name)                          \
  class Name : public ::tessera::Module<Name##Impl> { \
   public:                                            \
    using ::tessera::Module<Name##Impl>::Module;      \
    using Impl = Name##Impl;                          \
  }
