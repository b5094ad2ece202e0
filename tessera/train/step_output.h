#pragma once

#include <array>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

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
  /// Element-wise over microbatches.
  at::Tensor reduce_mean() const {
    return stack().mean(0);
  }
  at::Tensor reduce_sum() const {
    return stack().sum(0);
  }
  /// Joined along the batch axis, 0.
  at::Tensor concat() const {
    return at::cat(outputs_, 0);
  }
  at::Tensor merge() const {
    return concat();
  }
  /// A new leading axis of microbatches.
  at::Tensor stack() const {
    return at::stack(outputs_, 0);
  }

 private:
  std::vector<at::Tensor> outputs_;
};

namespace detail {

/// What a step function's result type becomes: tensors become StepOutput
/// wherever they stand in tuples, vectors and maps, anything else a list with
/// one entry for each microbatch.
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

template <typename T>
struct StepResult<std::map<std::string, T>> {
  using Type = std::map<std::string, typename StepResult<T>::Type>;
  static Type join(const std::vector<std::map<std::string, T>>& values) {
    Type result;
    for (const auto& [key, unused] : values.at(0)) {
      const std::string& name = key;
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
} // namespace tessera
