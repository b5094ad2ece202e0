#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/OptionalArrayRef.h>
#include <torch/data/example.h>
#include <torch/nn/modules/adaptive.h>
#include <torch/nn/utils/rnn.h>
#include <torch/ordered_dict.h>

#include "tessera/tensor/torch_compat.h"
#include "tessera/tensor/value_containers.h"
#include "tessera/tensor/value_core.h"

/// Conversions of the types that libtorch's layers take and return. Include value.h instead.
namespace tessera {

namespace detail {

/// Owns a copy of the data that a view of the caller's data refers to; converts to the view,
/// `View`.
template <typename View, typename Owner>
struct OwnedView {
  Owner owner;
  // NOLINTNEXTLINE(google-explicit-constructor): passed where the view is expected
  operator View() const {
    return View(owner);
  }
};

template <typename View, typename Owner>
struct OwnedOptionalView {
  std::optional<Owner> owner;
  // NOLINTNEXTLINE(google-explicit-constructor): passed where the view is expected
  operator View() const {
    return owner ? View(*owner) : View();
  }
};

template <typename T>
struct StoredAs<at::ArrayRef<T>> {
  using Type = OwnedView<at::ArrayRef<T>, std::vector<T>>;
};

template <typename T>
struct StoredAs<TorchOptional<at::ArrayRef<T>>> {
  using Type = OwnedOptionalView<TorchOptional<at::ArrayRef<T>>, std::vector<T>>;
};

template <typename T>
struct StoredAs<c10::OptionalArrayRef<T>> {
  using Type = OwnedOptionalView<c10::OptionalArrayRef<T>, std::vector<T>>;
};

template <>
struct StoredAs<std::string_view> {
  using Type = OwnedView<std::string_view, std::string>;
};

} // namespace detail

// A view is packed with its data; unpacking gives an owner of a copy.

template <typename View, typename Owner>
struct Value<detail::OwnedView<View, Owner>> {
  static c10::IValue pack(const detail::OwnedView<View, Owner>& value) {
    return tessera::pack(value.owner);
  }
  static detail::OwnedView<View, Owner> unpack(const c10::IValue& value) {
    return {tessera::unpack<Owner>(value)};
  }
};

template <typename View, typename Owner>
struct Value<detail::OwnedOptionalView<View, Owner>> {
  static c10::IValue pack(const detail::OwnedOptionalView<View, Owner>& value) {
    return tessera::pack(value.owner);
  }
  static detail::OwnedOptionalView<View, Owner> unpack(const c10::IValue& value) {
    return {tessera::unpack<std::optional<Owner>>(value)};
  }
};

template <typename T>
struct Value<at::ArrayRef<T>> {
  static c10::IValue pack(at::ArrayRef<T> value) {
    return tessera::pack(value.vec());
  }
};

template <typename T>
struct Value<c10::OptionalArrayRef<T>> {
  static c10::IValue pack(const c10::OptionalArrayRef<T>& value) {
    return value ? detail::make_tuple_value({tessera::pack(*value)}) : c10::IValue();
  }
};

template <>
struct Value<std::string_view> {
  static c10::IValue pack(std::string_view value) {
    return std::string(value);
  }
};

/// Handles an argument written as nullopt, for any optional parameter.
template <typename T>
struct Value<
    T,
    std::enable_if_t<std::is_same_v<T, c10::nullopt_t> || std::is_same_v<T, std::nullopt_t>>> {
  static c10::IValue pack(const T&) {
    return {};
  }
  static T unpack(const c10::IValue&) {
    if constexpr (std::is_same_v<T, std::nullopt_t>) {
      return std::nullopt;
    } else {
      return c10::nullopt;
    }
  }
};

template <>
struct Value<at::Scalar> {
  static c10::IValue pack(const at::Scalar& value) {
    TESSERA_CHECK(!value.isComplex(), "complex numbers do not travel; send a tensor of one");
    if (value.isBoolean()) {
      return value.to<bool>();
    }
    return value.isFloatingPoint() ? c10::IValue(value.to<double>())
                                   : c10::IValue(value.to<std::int64_t>());
  }
  static at::Scalar unpack(const c10::IValue& value) {
    return value.toScalar();
  }
};

template <>
struct Value<at::Device> {
  static c10::IValue pack(const at::Device& value) {
    return tessera::pack(std::make_pair(value.type(), value.index()));
  }
  static at::Device unpack(const c10::IValue& value) {
    const auto [type, index] = tessera::unpack<std::pair<at::DeviceType, at::DeviceIndex>>(value);
    return {type, index};
  }
};

template <>
struct Value<caffe2::TypeMeta> {
  static c10::IValue pack(const caffe2::TypeMeta& value) {
    return tessera::pack(c10::typeMetaToScalarType(value));
  }
  static caffe2::TypeMeta unpack(const c10::IValue& value) {
    return c10::scalarTypeToTypeMeta(tessera::unpack<at::ScalarType>(value));
  }
};

template <>
struct Value<at::TensorOptions> {
  using Fields = std::tuple<
      TorchOptional<at::Device>,
      TorchOptional<caffe2::TypeMeta>,
      TorchOptional<at::Layout>,
      TorchOptional<bool>,
      TorchOptional<bool>,
      TorchOptional<at::MemoryFormat>>;
  static c10::IValue pack(const at::TensorOptions& value) {
    return tessera::pack(Fields(
        value.device_opt(),
        value.dtype_opt(),
        value.layout_opt(),
        value.requires_grad_opt(),
        value.pinned_memory_opt(),
        value.memory_format_opt()));
  }
  static at::TensorOptions unpack(const c10::IValue& value) {
    const auto [device, dtype, layout, requires_grad, pinned, format] =
        tessera::unpack<Fields>(value);
    return at::TensorOptions()
        .device(device)
        .dtype(dtype)
        .layout(layout)
        .requires_grad(requires_grad)
        .pinned_memory(pinned)
        .memory_format(format);
  }
};

namespace detail {

/// The first element of a packed PackedSequence. Its rows are time steps of all samples, so code
/// that splits values along an axis must recognize it.
inline constexpr const char* kPackedSequence = "torch::nn::utils::rnn::PackedSequence";

} // namespace detail

template <>
struct Value<torch::nn::utils::rnn::PackedSequence> {
  using Sequence = torch::nn::utils::rnn::PackedSequence;
  using Fields = std::tuple<std::string, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
  static c10::IValue pack(const Sequence& value) {
    return tessera::pack(Fields(
        detail::kPackedSequence,
        value.data(),
        value.batch_sizes(),
        value.sorted_indices(),
        value.unsorted_indices()));
  }
  static Sequence unpack(const c10::IValue& value) {
    const auto [tag, data, batch_sizes, sorted, unsorted] = tessera::unpack<Fields>(value);
    return Sequence(data, batch_sizes, sorted, unsorted);
  }
};

template <>
struct Value<torch::nn::ASMoutput> {
  static c10::IValue pack(const torch::nn::ASMoutput& value) {
    return tessera::pack(std::make_pair(value.output, value.loss));
  }
  static torch::nn::ASMoutput unpack(const c10::IValue& value) {
    const auto [output, loss] =
        tessera::unpack<std::pair<at::Tensor, decltype(torch::nn::ASMoutput::loss)>>(value);
    return {output, loss};
  }
};

template <typename K, typename T>
struct Value<torch::OrderedDict<K, T>> {
  static c10::IValue pack(const torch::OrderedDict<K, T>& values) {
    std::vector<std::pair<K, T>> pairs;
    for (const auto& item : values) {
      pairs.emplace_back(item.key(), item.value());
    }
    return tessera::pack(pairs);
  }
  static torch::OrderedDict<K, T> unpack(const c10::IValue& value) {
    torch::OrderedDict<K, T> values;
    for (auto& [key, item] : tessera::unpack<std::vector<std::pair<K, T>>>(value)) {
      values.insert(std::move(key), std::move(item));
    }
    return values;
  }
};

/// Handles the variant of libtorch's options, a type of its own up to torch 2.1.
template <template <typename...> class Variant, typename... Ts>
    struct Value < Variant<Ts...>,
    std::enable_if_t < !std::is_same_v<Variant<Ts...>, std::variant<Ts...>> &&
        requires(const Variant<Ts...>& value) {
  value.valueless_by_exception();
} >> : detail::VariantValue<Variant<Ts...>, Ts...>{};

/// Handles a batch of a torch::data::DataLoader.
template <typename Data, typename Target>
struct Value<torch::data::Example<Data, Target>> {
  using Example = torch::data::Example<Data, Target>;
  static constexpr bool kHasTarget = !std::is_same_v<Target, torch::data::example::NoTarget>;
  static c10::IValue pack(const Example& value) {
    if constexpr (kHasTarget) {
      return tessera::pack(std::make_pair(value.data, value.target));
    } else {
      return tessera::pack(value.data);
    }
  }
  static Example unpack(const c10::IValue& value) {
    if constexpr (kHasTarget) {
      auto [data, target] = tessera::unpack<std::pair<Data, Target>>(value);
      return Example(std::move(data), std::move(target));
    } else {
      return Example(tessera::unpack<Data>(value));
    }
  }
};

} // namespace tessera
