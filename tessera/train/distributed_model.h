#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include "tessera/nn/module/module.h"
#include "tessera/tensor/value.h"
#include "tessera/train/cast_call.h"
#include "tessera/train/model.h"

namespace tessera {

namespace detail {

/// Returns whether a value of the type can be packed and made again as the same type.
template <typename T>
constexpr bool travels() {
  if constexpr (std::is_void_v<T>) {
    return true;
  } else if constexpr (Packable<T> && Unpackable<T>) {
    return std::is_same_v<Stored<T>, T>;
  } else {
    return false;
  }
}
template <typename T>
inline constexpr bool kTravels = travels<T>();

/// What a script may give to DistributedModel, and how each is held and called.
template <typename Net>
concept ModuleHolderType = requires(const Net& net) {
  typename Net::ContainedType;
  net.ptr();
};
template <typename Net>
concept ModuleClass = std::is_base_of_v<torch::nn::Module, Net>;

/// A call of the root goes through the interceptor of the thread once, whatever class it is of.
template <typename Impl, typename... Args>
auto call_root(Impl& root, Args&&... args) {
  if constexpr (requires { typename Impl::DispatchesItself; }) {
    return root.forward(std::forward<Args>(args)...);
  } else {
    return ModuleCall<Impl, Carried<Args>...>::dispatch(root, std::forward<Args>(args)...);
  }
}

template <typename Net>
struct RootOf {
  static_assert(
      ModuleClass<Net>,
      "DistributedModel takes a module holder (of TESSERA_MODULE, TORCH_MODULE or "
      "torch::nn::Sequential), a std::shared_ptr to a class derived from torch::nn::Module, or an "
      "object of such a class");
  using Kept = std::shared_ptr<Net>;
  static Kept keep(Net net) {
    return std::make_shared<Net>(std::move(net));
  }
  static const Kept& pointer(const Kept& net) {
    return net;
  }
};
template <ModuleHolderType Net>
struct RootOf<Net> {
  using Kept = Net;
  static Kept keep(Net net) {
    return net;
  }
  static const auto& pointer(const Kept& net) {
    return net.ptr();
  }
};
template <ModuleClass Net>
struct RootOf<std::shared_ptr<Net>> {
  using Kept = std::shared_ptr<Net>;
  static Kept keep(Kept net) {
    if (net == nullptr) {
      throw ConfigError("DistributedModel was given a null pointer in place of a module");
    }
    return net;
  }
  static const Kept& pointer(const Kept& net) {
    return net;
  }
};

} // namespace detail

/// A Model that is called like its net. `Net` is a holder (of TESSERA_MODULE, TORCH_MODULE or
/// torch::nn::Sequential), a std::shared_ptr to a module, or the class of a module object, which is
/// moved in. Threads: step thread only; calls from the step function.
/// Source: the library's documentation, `DistributedModel`.
template <typename Net>
class DistributedModel : public Model {
  using Root = detail::RootOf<Net>;

 public:
  explicit DistributedModel(Net net, ModelOptions options = {})
      : DistributedModel(Given{Root::keep(std::move(net))}, std::move(options)) {
    const auto& root = Root::pointer(net_);
    nn::remember_object_size(root, sizeof(*root));
  }

  /// The model's forward. Inside a step (or tracing) only, unless the whole
  /// model is on this rank. With the keys fp16 and bf16 floating-point tensors
  /// among the arguments become 16 bits, those of the result f32. Not
  /// collective.
  template <typename... Args>
  auto operator()(Args&&... args) const {
    check_call();
    if (const auto type = converted_to()) {
      return train::call_in(
          *type,
          [this](auto&&... cast) { return this->call(std::forward<decltype(cast)>(cast)...); },
          std::forward<Args>(args)...);
    }
    if (by_operations()) {
      return call_operations(std::forward<Args>(args)...);
    }
    return call(std::forward<Args>(args)...);
  }
  template <typename... Args>
  auto forward(Args&&... args) const {
    return (*this)(std::forward<Args>(args)...);
  }
  /// A script that has `model->forward(x)`, `model->train()` or `model->parameters()` keeps it.
  const DistributedModel* operator->() const {
    return this;
  }

  /// Returns what the script gave; a module object is in a std::shared_ptr now.
  auto& net() {
    return net_;
  }

 private:
  struct Given {
    typename Root::Kept net;
  };
  template <typename... Args>
  auto call(Args&&... args) const {
    if constexpr (requires { typename Net::ImplType; }) {
      return net_(std::forward<Args>(args)...); // a holder of ours knows default arguments
    } else {
      return detail::call_root(*Root::pointer(net_), std::forward<Args>(args)...);
    }
  }
  /// The call where it is divided by operations: what the forward is given and returns is packed.
  template <typename... Args>
  auto call_operations(Args&&... args) const {
    using Result = decltype(call(std::forward<Args>(args)...));
    if constexpr (detail::kTravels<Result> && (detail::kTravels<std::decay_t<Args>> && ...)) {
      using Values = std::tuple<std::decay_t<Args>...>;
      const c10::IValue result =
          call_by_operations(pack(Values(args...)), [this](const c10::IValue& given) {
            return std::apply(
                [this, &given](auto&&... values) {
                  return this->template call_with<Result, Args...>(given, values...);
                },
                unpack<Values>(given));
          });
      if constexpr (!std::is_void_v<Result>) {
        return unpack<Result>(result);
      }
    } else {
      detail::refuse_operations();
      return call(std::forward<Args>(args)...); // not reached
    }
  }
  template <typename Result, typename... Args, typename... Values>
  c10::IValue call_with([[maybe_unused]] const c10::IValue& given, Values&... values) const {
    c10::IValue result;
    if constexpr (std::is_void_v<Result>) {
      call(static_cast<Args&&>(values)...);
    } else {
      result = pack(call(static_cast<Args&&>(values)...));
    }
    [[maybe_unused]] std::size_t position = 0;
    (check_argument<Args>(given, position++, values), ...);
    return result;
  }
  template <typename Arg, typename Left>
  static void check_argument(
      [[maybe_unused]] const c10::IValue& given,
      [[maybe_unused]] std::size_t position,
      [[maybe_unused]] const Left& left) {
    if constexpr (
        std::is_lvalue_reference_v<Arg> && !std::is_const_v<std::remove_reference_t<Arg>>) {
      detail::check_unchanged(given.toTupleRef().elements()[position], pack(left));
    }
  }
  DistributedModel(Given given, ModelOptions options)
      : Model(Root::pointer(given.net), std::move(options)), net_(std::move(given.net)) {}

  typename Root::Kept net_;
};

/// `auto model = tessera::distributed(Net(k));`: DistributedModel model(Net(k)) declares a
/// function.
template <typename Net>
DistributedModel<Net> distributed(Net net, ModelOptions options = {}) {
  return DistributedModel<Net>(std::move(net), std::move(options));
}

} // namespace tessera
