#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include <torch/nn/functional/instancenorm.h> // what the module's header leaves out
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/pimpl.h>

#include "tessera/nn/module/intercepted.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/nn/module/marks.h"
#include "tessera/tensor/value.h"

namespace tessera {

namespace detail {

/// Whether a class can be derived from. libtorch does not export all that the vtable of a class
/// derived from these norms needs; their operator is placed without (nn/operator_layer.h).
template <typename Impl>
constexpr bool is_derivable() {
  using namespace torch::nn; // NOLINT(google-build-using-namespace)
  return !std::is_final_v<Impl> && !std::is_same_v<Impl, BatchNorm1dImpl> &&
         !std::is_same_v<Impl, BatchNorm2dImpl> && !std::is_same_v<Impl, BatchNorm3dImpl> &&
         !std::is_same_v<Impl, InstanceNorm1dImpl> && !std::is_same_v<Impl, InstanceNorm2dImpl> &&
         !std::is_same_v<Impl, InstanceNorm3dImpl>;
}

/// The class that a holder makes, and the class that libtorch sees as its content:
/// `Contained::forward` is one function wherever the script's is, which libtorch's containers need.
template <typename Impl, bool kDerivable = is_derivable<Impl>()>
struct HeldClass {
  using Made = Intercepted<Impl>;
  using Contained = typename CallLayerOf<Impl>::type;
};
/// Calls by the arrow go past the holder.
template <typename Impl>
struct HeldClass<Impl, false> {
  using Made = Impl;
  using Contained = Impl;
};

} // namespace detail

/// A module holder whose calls the runtime can run on another rank. Replaces
/// torch::nn::ModuleHolder: write TESSERA_MODULE(Net) where a libtorch script has
/// TORCH_MODULE(Net). It makes objects of a class derived from `Impl`, so that `net(x)`,
/// `net->forward(x)`, `module->as<Net>()->forward(x)` and torch's containers all arrive at the
/// runtime. Outside a step, and for modules that live on this rank, each is the plain call of
/// `Impl::forward`.
///
/// Arguments and results may be anything tessera::Value knows.
/// Threads: as torch::nn::Module.
/// Source: Karakus et al. 2021, section 4.1.
template <typename Impl>
class Module : public torch::nn::ModuleHolder<typename detail::HeldClass<Impl>::Contained> {
  using Made = typename detail::HeldClass<Impl>::Made;
  using Contained = typename detail::HeldClass<Impl>::Contained;
  using Base = torch::nn::ModuleHolder<Contained>;

 public:
  using ImplType = Impl;

  Module() : Base(made()) {}
  // NOLINTNEXTLINE(google-explicit-constructor): as ModuleHolder
  Module(std::nullptr_t) : Base(nullptr) {}
  /// Takes a module that a holder of this class made, or one without another owner, which is moved
  /// into an object of the holder's class.
  /// Throws: ConfigError for another object, whose calls could not be intercepted.
  template <typename Object>
  requires std::is_convertible_v<std::shared_ptr<Object>, std::shared_ptr<Impl>>
  // NOLINTNEXTLINE(google-explicit-constructor): as ModuleHolder
  Module(std::shared_ptr<Object> object) : Base(adopted(std::move(object))) {}
  template <
      typename Head,
      typename... Tail,
      typename = std::enable_if_t<
          !(std::is_base_of_v<Module, std::decay_t<Head>> && sizeof...(Tail) == 0) &&
          !std::is_convertible_v<Head, std::shared_ptr<Impl>>>>
  explicit Module(Head&& head, Tail&&... tail)
      : Base(made(std::forward<Head>(head), std::forward<Tail>(tail)...)) {}

  Made* operator->() {
    return get();
  }
  const Made* operator->() const {
    return get();
  }
  Made& operator*() {
    return *get();
  }
  const Made& operator*() const {
    return *get();
  }
  // Whatever the holder contains it has made itself, as a Made.
  Made* get() {
    return static_cast<Made*>(Base::get());
  }
  const Made* get() const {
    return static_cast<const Made*>(Base::get());
  }

  template <typename... Args>
  auto operator()(Args&&... args) const {
    Made& module = const_cast<Made&>(**this);
    if constexpr (std::is_same_v<Made, Impl>) {
      return detail::ModuleCall<Impl, Args...>::dispatch(module, std::forward<Args>(args)...);
    } else {
      return module.forward(std::forward<Args>(args)...);
    }
  }

 private:
  template <typename... Args>
  static std::shared_ptr<Contained> made(Args&&... args) {
    auto module = std::make_shared<Made>(std::forward<Args>(args)...);
    return marked(std::move(module));
  }

  static std::shared_ptr<Contained> adopted(std::shared_ptr<Impl> impl) {
    if (impl == nullptr) {
      return nullptr;
    }
    auto module = std::dynamic_pointer_cast<Made>(impl);
    if (module == nullptr) {
      if constexpr (std::is_constructible_v<Impl, Impl&&> && !std::is_same_v<Made, Impl>) {
        if (impl.use_count() == 1 && typeid(*impl) == typeid(Impl)) {
          module = std::make_shared<Made>(std::move(*impl));
        }
      }
    }
    if (module == nullptr) {
      throw ConfigError(
          str("a holder was given a ",
              nn::type_name(*impl),
              " that std::make_shared made and the script keeps, so calls of it would not be seen; "
              "make it with the holder, `",
              nn::type_name(*impl),
              " name(arguments...)`, and pass that on"));
    }
    return marked(std::move(module));
  }

  static std::shared_ptr<Contained> marked(std::shared_ptr<Made> module) {
    nn::mark_interceptable(module);
    nn::remember_object_size(module, sizeof(Made));
    return module;
  }
};

/// Modules created in this scope go to pp rank `index` (auto_partition: false); so do operators
/// that are called in it, in a forward that is divided by operations.
using partition = nn::PartitionScope;
/// Operators called in scopes of one name stay on one rank (partition_mode: operations).
using colocation = nn::ColocationScope;

} // namespace tessera

/// Defines the holder `Name` of `NameImpl`, as TORCH_MODULE does.
#define TESSERA_MODULE(Name)                          \
  class Name : public ::tessera::Module<Name##Impl> { \
   public:                                            \
    using ::tessera::Module<Name##Impl>::Module;      \
    using Impl = Name##Impl;                          \
  }
