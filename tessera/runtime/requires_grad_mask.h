#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace tessera::runtime {

/// Says which tensors of a value require a gradient, in for_each_tensor order.
/// Not collective. Threads: any thread.
class RequiresGradMask {
 public:
  /// The mask of a value that has no tensors, and of gradients.
  RequiresGradMask() = default;
  explicit RequiresGradMask(const c10::IValue& value);

  /// "0110", in messages and error texts.
  std::string to_text() const;
  /// Throws: InternalError for another character than 0 and 1.
  static RequiresGradMask from_text(const std::string& text);

  std::size_t size() const {
    return bits_.size();
  }
  bool operator[](std::size_t tensor) const {
    return bits_.at(tensor);
  }
  bool any() const;
  bool operator==(const RequiresGradMask&) const = default;

  /// Returns the tensors of `value` that this mask names.
  /// Throws: InternalError when `value` has another number of tensors.
  std::vector<at::Tensor> select(const c10::IValue& value) const;

 private:
  std::vector<bool> bits_;
};

} // namespace tessera::runtime
