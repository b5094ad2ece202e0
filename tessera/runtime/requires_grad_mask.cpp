#include "tessera/runtime/requires_grad_mask.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/tensor/value.h"

namespace tessera::runtime {

RequiresGradMask::RequiresGradMask(const c10::IValue& value) {
  for_each_tensor(
      value, [&](const at::Tensor& tensor) { bits_.push_back(tensor.requires_grad()); });
}

std::string RequiresGradMask::to_text() const {
  std::string text;
  for (const bool bit : bits_) {
    text += bit ? '1' : '0';
  }
  return text;
}

RequiresGradMask RequiresGradMask::from_text(const std::string& text) {
  RequiresGradMask mask;
  for (const char bit : text) {
    TESSERA_CHECK(bit == '0' || bit == '1', "a requires_grad mask '", text, "'");
    mask.bits_.push_back(bit == '1');
  }
  return mask;
}

bool RequiresGradMask::any() const {
  return std::find(bits_.begin(), bits_.end(), true) != bits_.end();
}

std::vector<at::Tensor> RequiresGradMask::select(const c10::IValue& value) const {
  std::vector<at::Tensor> tensors;
  std::size_t at = 0;
  for_each_tensor(value, [&](const at::Tensor& tensor) {
    TESSERA_CHECK(at < size());
    if (bits_[at++]) {
      tensors.push_back(tensor);
    }
  });
  TESSERA_CHECK(at == size());
  return tensors;
}

} // namespace tessera::runtime
