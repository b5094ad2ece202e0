#pragma once

#include <utility>

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/base/error.h"

// How a node of autograd keeps what is no tensor.
namespace tessera::nn::two_d {

template <typename T>
struct Kept : torch::CustomClassHolder {
  explicit Kept(T kept) : value(std::move(kept)) {}
  T value;
};
template <typename T>
using KeptPtr = c10::intrusive_ptr<Kept<T>>;

template <typename T>
KeptPtr<T> keep(T value) {
  return c10::make_intrusive<Kept<T>>(std::move(value));
}

template <typename T>
void save(torch::autograd::AutogradContext* ctx, const KeptPtr<T>& kept) {
  ctx->saved_data["kept"] = c10::IValue::make_capsule(kept);
}

template <typename T>
KeptPtr<T> saved(torch::autograd::AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<Kept<T>>(ctx->saved_data["kept"].toCapsule());
}

/// For functions whose gradient has no gradient of its own.
inline void require_first_order(const char* what) {
  if (at::GradMode::is_enabled()) {
    throw ShapeError(tessera::str(
        "the gradient of ",
        what,
        " on a mesh cannot be differentiated again; call backward without "
        "create_graph"));
  }
}

} // namespace tessera::nn::two_d
