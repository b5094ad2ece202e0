#include "tessera/train/fresh_copies.h"

namespace tessera::detail {

namespace {

at::Tensor clone_of(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  at::Tensor copy = tensor.detach().clone();
  copy.set_requires_grad(tensor.requires_grad());
  if (tensor.is_leaf() && tensor.grad().defined()) {
    copy.mutable_grad() = tensor.grad().detach().clone();
  }
  return copy;
}

} // namespace

at::Tensor FreshCopies::copy_of(const at::Tensor& tensor) {
  if (!tensor.has_storage() || tensor.layout() != at::kStrided) {
    return clone_of(tensor);
  }
  const Place place(
      tensor.storage().unsafeGetStorageImpl(),
      tensor.storage_offset(),
      tensor.sizes().vec(),
      tensor.strides().vec(),
      tensor.requires_grad());
  auto found = copies_.find(place);
  if (found == copies_.end()) {
    found = copies_.emplace(place, clone_of(tensor)).first;
  }
  return found->second;
}

} // namespace tessera::detail
