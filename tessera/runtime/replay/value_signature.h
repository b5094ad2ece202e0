#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace tessera::runtime {

struct TensorSignature {
  at::ScalarType dtype = at::kFloat;
  c10::DeviceType device = c10::kCPU;
  std::vector<std::int64_t> sizes;

  explicit TensorSignature(const at::Tensor& tensor);
  bool operator==(const TensorSignature&) const = default;
  /// Units: bytes.
  std::int64_t bytes() const;
  /// Returns a meta tensor of this shape.
  at::Tensor meta_tensor() const;
};

/// "float32 [2, 8]"
std::string to_text(const TensorSignature& form);

/// A value without the data of its tensors: what must not change from step to step in static
/// mode.
/// Not collective. Threads: any thread.
class ValueSignature {
 public:
  ValueSignature() = default;
  explicit ValueSignature(const c10::IValue& value);

  /// The tensors in the order of for_each_tensor.
  const std::vector<TensorSignature>& tensors() const {
    return tensors_;
  }

  /// Returns, for people, how `value` differs from this signature; nullopt when it does not.
  std::optional<std::string> difference(const c10::IValue& value) const;
  std::optional<std::string> difference(const ValueSignature& other) const;

  /// Returns the value with an empty tensor in place of each.
  const c10::IValue& structure() const {
    return structure_;
  }

  /// Returns a value of this signature with these tensors.
  c10::IValue filled(const std::vector<at::Tensor>& tensors) const;

 private:
  c10::IValue structure_;
  std::vector<TensorSignature> tensors_;
};

} // namespace tessera::runtime
