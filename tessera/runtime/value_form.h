#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace tessera::runtime {

struct TensorForm {
  at::ScalarType dtype = at::kFloat;
  c10::DeviceType device = c10::kCPU;
  std::vector<std::int64_t> sizes;

  explicit TensorForm(const at::Tensor& tensor);
  bool operator==(const TensorForm&) const = default;
  /// Units: bytes.
  std::int64_t bytes() const;
  /// A meta tensor of this shape.
  at::Tensor stand_in() const;
};

/// "float32 [2, 8]"
std::string to_text(const TensorForm& form);

/// A value without the numbers in its tensors: what must not change from step
/// to step in static mode.
/// Not collective. Threads: any thread.
class ValueForm {
 public:
  ValueForm() = default;
  explicit ValueForm(const c10::IValue& value);

  /// In for_each_tensor order.
  const std::vector<TensorForm>& tensors() const {
    return tensors_;
  }

  /// What about `value` is not of this form, for people; nothing: it is.
  std::optional<std::string> difference(const c10::IValue& value) const;
  std::optional<std::string> difference(const ValueForm& other) const;

  /// The value, with an empty tensor in place of each.
  const c10::IValue& structure() const {
    return structure_;
  }

  /// A value of this form with these tensors.
  c10::IValue filled(const std::vector<at::Tensor>& tensors) const;

 private:
  c10::IValue structure_;
  std::vector<TensorForm> tensors_;
};

} // namespace tessera::runtime
