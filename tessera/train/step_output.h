#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/tensor/aggregate.h"

namespace tessera {

/// One tensor that the step function returned, for every microbatch.
/// Source: the library's documentation, `StepOutput`.
class StepOutput {
 public:
  StepOutput() = default;
  explicit StepOutput(std::vector<at::Tensor> outputs) : outputs_(std::move(outputs)) {}

  /// By microbatch.
  const std::vector<at::Tensor>& outputs() const {
    return outputs_;
  }
  const at::Tensor& operator[](std::size_t microbatch) const {
    return outputs_.at(microbatch);
  }
  /// Element-wise over microbatches. Throws: as `stack`.
  at::Tensor reduce_mean() const {
    return stack().mean(0);
  }
  at::Tensor reduce_sum() const {
    return stack().sum(0);
  }
  /// The mean as `reduce_mean` gives it, without ever holding the tensors of all microbatches once
  /// more: they are added one by one, in their order. With `into` the mean is added to it, in
  /// place, and `into` is the result; gradients of several steps are averaged so. `method`:
  /// "variable", "add_n" or "accumulate_n", the documentation's three ways, which give one result
  /// here. Throws: ShapeError when shapes differ, also from that of `into`; UserError for another
  /// method, without microbatches, and for whole numbers, which have no mean. Source: the library's
  /// documentation, `StepOutput.accumulate`.
  at::Tensor accumulate(const std::string& method = "variable", at::Tensor into = {}) const;
  /// Joined along the batch axis, 0. Throws: ShapeError when another axis differs.
  at::Tensor concat() const {
    check_joinable("concat", 1);
    return at::cat(outputs_, 0);
  }
  at::Tensor merge() const {
    return concat();
  }
  /// A new leading axis of microbatches. Throws: ShapeError when shapes differ.
  at::Tensor stack() const {
    check_joinable("stack", 0);
    return at::stack(outputs_, 0);
  }

 private:
  // From `first_axis` on all shapes must be equal.
  void check_joinable(const char* asked, std::size_t first_axis) const;

  std::vector<at::Tensor> outputs_;
};

namespace detail {

/// What a step function's result type becomes: tensors become StepOutput
/// wherever they stand in tuples, vectors, maps and structs, anything else a list
/// with one entry for each microbatch.
template <typename T>
struct StepResult {
  using Type = std::vector<T>;
  static Type join(std::vector<T> values) {
    return values;
  }
};

template <>
struct StepResult<void> {
  using Type = void;
};

template <>
struct StepResult<at::Tensor> {
  using Type = StepOutput;
  static Type join(std::vector<at::Tensor> values) {
    return StepOutput(std::move(values));
  }
};

template <typename Value, typename Pick>
auto join_part(const std::vector<Value>& values, Pick pick) {
  using T = std::decay_t<decltype(pick(values[0]))>;
  std::vector<T> parts;
  parts.reserve(values.size());
  for (const auto& value : values) {
    parts.push_back(pick(value));
  }
  return StepResult<T>::join(std::move(parts));
}

template <typename... Ts>
struct StepResult<std::tuple<Ts...>> {
  using Type = std::tuple<typename StepResult<Ts>::Type...>;
  static Type join(const std::vector<std::tuple<Ts...>>& values) {
    return join(values, std::index_sequence_for<Ts...>());
  }
  template <std::size_t... I>
  static Type join(const std::vector<std::tuple<Ts...>>& values, std::index_sequence<I...>) {
    return Type(join_part(values, [](const auto& v) { return std::get<I>(v); })...);
  }
};

template <typename A, typename B>
struct StepResult<std::pair<A, B>> {
  using Type = std::pair<typename StepResult<A>::Type, typename StepResult<B>::Type>;
  static Type join(const std::vector<std::pair<A, B>>& values) {
    return {
        join_part(values, [](const auto& v) { return v.first; }),
        join_part(values, [](const auto& v) { return v.second; })};
  }
};

template <typename T>
struct StepResult<std::vector<T>> {
  using Type = std::vector<typename StepResult<T>::Type>;
  static Type join(const std::vector<std::vector<T>>& values) {
    Type result;
    for (std::size_t i = 0; i < values.at(0).size(); ++i) {
      result.push_back(join_part(values, [&](const auto& v) {
        if (v.size() != values[0].size()) {
          throw ShapeError(
              "the step function returned lists of different lengths for "
              "different microbatches");
        }
        return v[i];
      }));
    }
    return result;
  }
};

template <typename K, typename T>
struct StepResult<std::map<K, T>> {
  using Type = std::map<K, typename StepResult<T>::Type>;
  static Type join(const std::vector<std::map<K, T>>& values) {
    Type result;
    for (const auto& [key, unused] : values.at(0)) {
      const K& name = key;
      result.emplace(name, join_part(values, [&](const auto& v) {
                       const auto found = v.find(name);
                       if (found == v.end() || v.size() != values[0].size()) {
                         throw ShapeError(str(
                             "the step function returned '", name, "' for some microbatches only"));
                       }
                       return found->second;
                     }));
    }
    return result;
  }
};

} // namespace detail

/// A plain struct that the step function returned, for every microbatch:
///
///     struct Output { torch::Tensor loss; torch::Tensor logits; };
///     auto out = train_step(x, y);
///     out[&Output::loss].reduce_mean();       // a field by its name: a StepOutput
///     auto [loss, logits] = train_step(x, y); // all fields, in their order
///     out[0].logits                           // the struct of microbatch 0
///
/// Fields are joined as elements of a tuple are: a tensor to a StepOutput, another struct to a
/// StepStruct, a number to a list.
template <typename T>
class StepStruct {
 public:
  explicit StepStruct(std::vector<T> outputs) : outputs_(std::move(outputs)) {}

  /// By microbatch.
  const std::vector<T>& outputs() const {
    return outputs_;
  }
  const T& operator[](std::size_t microbatch) const {
    return outputs_.at(microbatch);
  }
  std::size_t size() const {
    return outputs_.size();
  }
  auto begin() const {
    return outputs_.begin();
  }
  auto end() const {
    return outputs_.end();
  }

  template <typename Field>
  auto operator[](Field T::*field) const {
    return detail::join_part(outputs_, [&](const T& value) { return value.*field; });
  }
  template <std::size_t I>
  auto get() const {
    return detail::join_part(
        outputs_, [](const T& value) { return std::get<I>(detail::tie_fields(value)); });
  }

 private:
  std::vector<T> outputs_;
};

namespace detail {

template <PlainStruct T>
struct StepResult<T> {
  using Type = StepStruct<T>;
  static Type join(std::vector<T> values) {
    return Type(std::move(values));
  }
};

} // namespace detail
} // namespace tessera

/// @cond  The reference lists no specialisations of std.
template <typename T>
struct std::tuple_size<tessera::StepStruct<T>>
    : std::integral_constant<std::size_t, tessera::detail::kFieldCount<T>> {};

template <std::size_t I, typename T>
struct std::tuple_element<I, tessera::StepStruct<T>> {
  using type = decltype(std::declval<const tessera::StepStruct<T>&>().template get<I>());
};
/// @endcond
