#pragma once

#include <memory>
#include <ostream>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include <torch/nn/module.h>

#include "tessera/nn/module/marks.h"
#include "tessera/nn/module/module_call.h"
#include "tessera/nn/module/script_class.h"
#include "tessera/tensor/torch_compat.h"

namespace tessera::nn {

/// Throws: UserError when the module has remote tensors; `asked` is what the script called,
/// `instead` what to write.
void refuse_remote(
    const torch::nn::Module& module,
    std::string_view asked,
    std::string_view instead);

} // namespace tessera::nn

/// The class that a holder makes in place of the script's. torch::nn has no virtual forward, so the
/// one place where `layer(x)`, `layer->forward(x)`, `as<Layer>()->forward(x)` and libtorch's
/// containers meet is the class of the object: ours derives from the script's and hides its
/// forward.
namespace tessera::detail {

/// The script's class with its forward hidden by one of exactly the same parameters, so that
/// `&Class::forward`, from which libtorch's containers take their types, stays one function. Also
/// overrides a virtual forward.
template <typename Impl, typename Function>
class ExactCall;

template <typename Impl, typename R, typename... Args>
class ExactCall<Impl, R(Args...)> : public Impl {
 public:
  using DispatchesItself = void;
  using Impl::Impl;
  ExactCall() = default;
  explicit ExactCall(const Impl& other) : Impl(other) {}
  explicit ExactCall(Impl&& other) : Impl(std::move(other)) {}

  R forward(Args... args) {
    return ModuleCall<Impl, Args...>::dispatch(*this, std::forward<Args>(args)...);
  }
};

template <typename Impl, typename R, typename... Args>
class ExactCall<Impl, R(Args...) const> : public Impl {
 public:
  using DispatchesItself = void;
  using Impl::Impl;
  ExactCall() = default;
  explicit ExactCall(const Impl& other) : Impl(other) {}
  explicit ExactCall(Impl&& other) : Impl(std::move(other)) {}

  R forward(Args... args) const {
    return ModuleCall<Impl, Args...>::dispatch(
        const_cast<ExactCall&>(*this), std::forward<Args>(args)...);
  }
};

/// The script's class with every overload (or instance of a template) of its forward hidden.
template <typename Impl>
class OpenCall : public Impl {
 public:
  using DispatchesItself = void;
  using Impl::Impl;
  OpenCall() = default;
  explicit OpenCall(const Impl& other) : Impl(other) {}
  explicit OpenCall(Impl&& other) : Impl(std::move(other)) {}

  template <typename... Args>
  requires requires(Impl& impl, Args&&... args) {
    impl.forward(std::forward<Args>(args)...);
  }
  auto forward(Args&&... args) {
    return ModuleCall<Impl, Carried<Args>...>::dispatch(*this, std::forward<Args>(args)...);
  }
};

/// The exact call, and one that leaves trailing arguments to their defaults. A class of its own:
/// beside a template of the script's it would hide that one for some compilers.
template <typename Impl>
class ShortCall : public ExactCall<Impl, typename SignatureOf<Impl>::Function> {
  using Exact = ExactCall<Impl, typename SignatureOf<Impl>::Function>;

 public:
  using Exact::Exact;
  ShortCall() = default;
  explicit ShortCall(const Impl& other) : Exact(other) {}
  explicit ShortCall(Impl&& other) : Exact(std::move(other)) {}

  using Exact::forward;
  template <typename... Given>
  requires TakesMoreThan<Impl, sizeof...(Given)> && requires(Impl& impl, Given&&... given) {
    impl.Impl::forward(std::forward<Given>(given)...);
  }
  auto forward(Given&&... given) {
    return ModuleCall<Impl, Given...>::dispatch(*this, std::forward<Given>(given)...);
  }
};

/// `type` has the calls of the script's class alone, as libtorch's containers want them; `widest`
/// also those that leave out arguments.
template <typename Impl>
struct CallLayerOf {
  using type = OpenCall<Impl>;
  using widest = OpenCall<Impl>;
};
template <HasOneForward Impl>
struct CallLayerOf<Impl> {
  using type = ExactCall<Impl, typename SignatureOf<Impl>::Function>;
  using widest = ShortCall<Impl>;
};

/// The script's class as a holder makes it: calls are dispatched, and what would silently use the
/// empty tensors of other ranks throws.
template <typename Impl>
class Intercepted final : public CallLayerOf<Impl>::widest, public nn::ScriptClass {
  using Layer = typename CallLayerOf<Impl>::widest;

 public:
  using Layer::Layer;
  Intercepted() = default;
  explicit Intercepted(const Impl& other) : Layer(other) {
    registered() = other;
  }
  explicit Intercepted(Impl&& other) : Layer(std::move(other)) {
    registered() =
        std::move(static_cast<torch::nn::Module&>(other)); // NOLINT(bugprone-use-after-move)
  }

  using Layer::forward;

  const std::type_info& script_class() const override {
    return typeid(Impl);
  }

  std::shared_ptr<torch::nn::Module> clone(
      const TorchOptional<torch::Device>& device = {}) const override {
    nn::refuse_remote(*this, "clone()", "copy the model's state: model.copy_to(plain)");
    std::shared_ptr<torch::nn::Module> plain = Impl::clone(device);
    if constexpr (std::is_copy_constructible_v<Impl>) {
      auto copy = std::make_shared<Intercepted>(dynamic_cast<const Impl&>(*plain));
      nn::mark_interceptable(copy);
      return copy;
    } else {
      return plain;
    }
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    nn::refuse_remote(*this, "torch::save", "tessera::save_module(model, path)");
    Impl::save(archive);
  }
  void load(torch::serialize::InputArchive& archive) override {
    nn::refuse_remote(*this, "torch::load", "tessera::load_module(model, path)");
    Impl::load(archive);
  }
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override {
    nn::refuse_remote(*this, "to()", kBeforeWrapping);
    Impl::to(device, dtype, non_blocking);
  }
  void to(torch::Dtype dtype, bool non_blocking = false) override {
    nn::refuse_remote(*this, "to()", kBeforeWrapping);
    Impl::to(dtype, non_blocking);
  }
  void to(torch::Device device, bool non_blocking = false) override {
    nn::refuse_remote(*this, "to()", kBeforeWrapping);
    Impl::to(device, non_blocking);
  }
  /// Without a printer of its own a module prints its class, which is the script's.
  void pretty_print(std::ostream& stream) const override {
    if constexpr (prints_its_class()) {
      stream << nn::script_class_name(*this);
    } else {
      Impl::pretty_print(stream);
    }
  }

 private:
  /// What is registered. libtorch's Cloneable has it in a virtual base, which the class of the
  /// object makes anew, whatever its other bases were made from.
  torch::nn::Module& registered() {
    return *this;
  }

  static constexpr const char* kBeforeWrapping =
      "call it on the module before it is given to DistributedModel";
  static constexpr bool prints_its_class() {
    return std::
        is_same_v<decltype(&Impl::pretty_print), void (torch::nn::Module::*)(std::ostream&) const>;
  }
};

} // namespace tessera::detail
