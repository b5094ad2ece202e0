#pragma once

#include <type_traits>
#include <utility>

#include <torch/nn/modules/linear.h>

namespace tessera::nn {

/// The forward of libtorch's Linear, whose product a region may keep (recompute/kept_products.h).
at::Tensor linear_forward(torch::nn::LinearImpl& linear, const at::Tensor& x);

/// A module's own forward. The qualified name reaches it also where it is virtual and the object's
/// class overrides it with a call of `dispatch`.
template <typename Impl, typename... Args>
decltype(auto) plain_forward(Impl& impl, Args&&... args) {
  if constexpr (std::is_same_v<Impl, torch::nn::LinearImpl>) {
    return linear_forward(impl, args...);
  } else {
    return impl.Impl::forward(std::forward<Args>(args)...);
  }
}

} // namespace tessera::nn
