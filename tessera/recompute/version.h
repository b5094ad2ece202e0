#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::recompute {

/// The version of a tensor, which counts its changes in place. It holds none of the tensor's
/// memory.
class Version {
 public:
  explicit Version(const at::Tensor& tensor) {
    if (tensor.defined() && !tensor.is_inference()) {
      counter_ = tensor.unsafeGetTensorImpl()->version_counter();
      at_first_ = counter_.current_version();
    }
  }
  bool changed() const {
    return counter_.enabled() && counter_.current_version() != at_first_;
  }

 private:
  c10::VariableVersion counter_ = c10::VariableVersion(c10::VariableVersion::DISABLED);
  std::uint32_t at_first_ = 0;
};

} // namespace tessera::recompute
