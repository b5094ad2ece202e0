#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeindex>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/nn/module/marks.h"
#include "tessera/nn/module/module_call.h"
#include "tessera/nn/parallel/distributed_module.h"
#include "tessera/nn/parallel/marking.h"
#include "tessera/nn/replace/hooks.h"
#include "tessera/tensor/value.h"

namespace tessera::nn {

/// Tensors by name: parameters and buffers of one module.
using StateMap = std::map<std::string, at::Tensor>;

/// The options that a `tensor_parallelism` scope gave, for an init hook:
///     options.take("use_normal", result.use_normal);
class GivenOptions {
 public:
  explicit GivenOptions(OptionValues values) : values_(std::move(values)) {}

  /// Puts the given value in the place of `value`, if there is one.
  /// Throws: ConfigError when it is of another type.
  template <typename T>
  void take(const std::string& name, T& value) const {
    const auto found = values_.find(name);
    if (found == values_.end()) {
      return;
    }
    taken_.insert(name);
    try {
      value = unpack<T>(found->second);
    } catch (const c10::Error&) {
      throw ConfigError(
          str("tensor_parallelism option \"",
              name,
              "\" has a value of the type ",
              found->second.tagKind(),
              ", which its module does not take"));
    }
  }
  /// The given value, or `otherwise`.
  template <typename T>
  T get(const std::string& name, T otherwise) const {
    take(name, otherwise);
    return otherwise;
  }
  /// Names that a hook asked for.
  const std::set<std::string>& taken() const {
    return taken_;
  }

 private:
  OptionValues values_;
  mutable std::set<std::string> taken_;
};

/// How a module of one class is replaced by its distributed implementation.
struct TpRule {
  std::string original; // class names, for people
  std::string distributed;
  /// Ships with the library: gives way to a program's own rule, whichever of
  /// the two is registered first.
  bool built_in = false;
  /// Makes the implementation with the original's hyperparameters. Throws
  /// ShapeError when sizes do not divide.
  std::function<std::shared_ptr<DistributedModule>(const torch::nn::Module&, const GivenOptions&)>
      make;
  /// Runs the implementation on the original's packed arguments.
  CallAdapter call;
  /// The original's state under the names and layout of the implementation's
  /// full (not sharded) state, and back. Empty: they are the same.
  std::function<StateMap(const StateMap&, const torch::nn::Module& original)> to_distributed;
  std::function<StateMap(const StateMap&, const torch::nn::Module& original)> to_original;
  /// Why a call of the implementation would lose what the original's gives its caller; "" when
  /// nothing is lost. Modules of the class are then not replaced: marking one is an error.
  std::string loses;
};

/// Makes a rule known; the last one for a class counts. Threads: any.
void set_tp_rule(std::type_index original, TpRule rule);
/// Returns the rule of the module's class; nullptr when there is none. It lives
/// until the end of the program or a later rule for the class. Threads: any.
std::shared_ptr<const TpRule> find_tp_rule(const torch::nn::Module& module);

} // namespace tessera::nn

namespace tessera {

/// What `tp_register_with_module` returns: hooks may follow, each takes effect
/// at once. `Original` and `Distributed` are the classes (XImpl). A module whose forward takes
/// an argument by a reference that is not const cannot be replaced: marking one is an error.
///
/// Not collective. Threads: any; before the model is wrapped.
template <typename Original, typename Distributed>
class TpRegistration {
  static_assert(
      std::is_base_of_v<nn::DistributedModule, Distributed>,
      "a distributed implementation derives from "
      "tessera::nn::DistributedModule");

 public:
  explicit TpRegistration(bool built_in = false) {
    rule_.built_in = built_in;
    rule_.original = detail::short_type_name(typeid(Original));
    rule_.distributed = detail::short_type_name(typeid(Distributed));
    if constexpr (std::is_constructible_v<Distributed, const Original&>) {
      init([](const Original& original) -> const Original& { return original; });
    } else if constexpr (requires(const Original& original) { Distributed(original.options); }) {
      init([](const Original& original) { return original.options; });
    } else {
      rule_.make = [name = rule_.original](const auto&, const auto&) {
        throw ConfigError(
            str("no init hook says how to make the distributed form of ",
                name,
                "; add .init([](const ",
                name,
                "Impl& original) { return ...; })"));
        return std::shared_ptr<nn::DistributedModule>();
      };
    }
    if constexpr (detail::HasOneForward<Original>) {
      if (nn::detail::takes_by_reference<typename detail::SignatureOf<Original>::Function>) {
        rule_.loses =
            "its forward takes an argument by a reference that is not const, and only the result "
            "of a distributed implementation comes back, so what a call changes there would be "
            "lost; take the argument by const reference and return its new value";
      }
    }
    if constexpr (nn::detail::has_one_forward<Distributed>) {
      forward_ = [name = rule_.original](nn::DistributedModule& module, const c10::IValue& args) {
        using Arguments = nn::detail::ForwardArguments<Distributed>;
        return run(module, nn::detail::unpack_arguments<Arguments>(args, name));
      };
    }
    publish();
  }

  /// `hook(const Original&)`, or `hook(const Original&, const
  /// nn::GivenOptions&)` for one that lets scopes override: the constructor's
  /// arguments of the distributed module, a tuple when there are several.
  /// Without it: the original itself, or its `options`, whichever the
  /// constructor takes.
  template <typename Hook>
  TpRegistration& init(Hook hook) {
    rule_.make = [hook](
                     const torch::nn::Module& module,
                     const nn::GivenOptions& options) -> std::shared_ptr<nn::DistributedModule> {
      const auto& original = dynamic_cast<const Original&>(module);
      if constexpr (std::is_invocable_v<Hook, const Original&, const nn::GivenOptions&>) {
        return nn::detail::make_from<Distributed>(hook(original, options));
      } else {
        return nn::detail::make_from<Distributed>(hook(original));
      }
    };
    publish();
    return *this;
  }

  /// `hook(arguments of the original's forward...)`: the arguments of the
  /// distributed forward, a tuple when there are several. Arguments that the
  /// caller left out come as undefined tensors or empty optionals. Without it
  /// both forwards take the same.
  template <typename Hook>
  TpRegistration& forward(Hook hook) {
    forward_ = [hook, name = rule_.original](
                   nn::DistributedModule& module, const c10::IValue& args) {
      using Arguments = nn::detail::CallArguments<Hook>;
      return run(
          module,
          nn::detail::as_tuple(
              std::apply(hook, nn::detail::unpack_arguments<Arguments>(args, name))));
    };
    publish();
    return *this;
  }

  /// `hook(what the distributed forward returns)`: what the original's returns.
  template <typename Hook>
  TpRegistration& returns(Hook hook) {
    returns_ = [hook](const c10::IValue& result) {
      using Argument = std::tuple_element_t<0, nn::detail::CallArguments<Hook>>;
      return pack(hook(unpack<Argument>(result)));
    };
    publish();
    return *this;
  }

  /// Both hooks take a map of full tensors by name and give another, by moving,
  /// cutting, joining or transposing; every element must come back as it was.
  /// `to_distributed` reads the original's state, `to_original` the distributed
  /// one's. Either may take `const Original&` as a second argument, for sizes.
  template <typename ToDistributed, typename ToOriginal>
  TpRegistration& state(ToDistributed to_distributed, ToOriginal to_original) {
    rule_.to_distributed = state_hook(to_distributed);
    rule_.to_original = state_hook(to_original);
    publish();
    return *this;
  }

 private:
  template <typename Arguments>
  static c10::IValue run(nn::DistributedModule& module, Arguments arguments) {
    auto& distributed = dynamic_cast<Distributed&>(module);
    return std::apply(
        [&](auto&&... values) {
          return pack(distributed.forward(std::forward<decltype(values)>(values)...));
        },
        std::move(arguments));
  }

  template <typename Hook>
  static auto state_hook(Hook hook) {
    return [hook](const nn::StateMap& state, const torch::nn::Module& original) -> nn::StateMap {
      if constexpr (std::is_invocable_v<Hook, const nn::StateMap&, const Original&>) {
        return hook(state, dynamic_cast<const Original&>(original));
      } else {
        return hook(state);
      }
    };
  }

  void publish() {
    rule_.call = [forward = forward_, returns = returns_, name = rule_.original](
                     torch::nn::Module& module, const c10::IValue& args) {
      if (!forward) {
        throw ConfigError(
            str("the distributed form of ",
                name,
                " has several forwards; say with .forward(hook) which one, and "
                "with what"));
      }
      const c10::IValue result = forward(dynamic_cast<nn::DistributedModule&>(module), args);
      return returns ? returns(result) : result;
    };
    nn::set_tp_rule(typeid(Original), rule_);
  }

  nn::TpRule rule_;
  std::function<c10::IValue(nn::DistributedModule&, const c10::IValue&)> forward_;
  std::function<c10::IValue(const c10::IValue&)> returns_;
};

/// Registers `Distributed` as the implementation of `Original` over the
/// TP_GROUP, under every tensor_parallel_kind; each is a holder or a class of
/// modules. Its constructor throws ShapeError for a kind it has no form for: the
/// original then stays, and those inside it are looked at.
///
///     tessera::tp_register_with_module<GatedUnit, DistributedGatedUnit>()
///         .init([](const GatedUnitImpl& unit) { return unit.width(); })
///         .state(to_distributed, to_original);
///
/// Source: Karakus et al. 2021, appendices E.3 and I.4. C++ cannot see the
/// arguments a module was made with: the init hook reads the module itself.
template <typename Original, typename Distributed>
auto tp_register_with_module() {
  return TpRegistration<nn::detail::ImplOf<Original>, nn::detail::ImplOf<Distributed>>();
}

} // namespace tessera

/// The same below the definition of a module, where Python would have a class
/// decorator; hooks may follow:
///
///     TESSERA_MODULE(GatedUnit);
///     TESSERA_TP_REGISTER(GatedUnit, DistributedGatedUnit)
///         .init([](const GatedUnitImpl& unit) { return unit.width(); });
#define TESSERA_TP_REGISTER(Original, Distributed)                    \
  [[maybe_unused]] static const auto tessera_tp_register_##Original = \
      ::tessera::tp_register_with_module<Original, Distributed>()
