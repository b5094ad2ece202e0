#pragma once

#include <utility>

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/base/error.h"

namespace tessera {

/// Carries a value that is no tensor from the forward of an autograd function
/// to its backward:
///
///     static at::Tensor
///     forward(AutogradContext* ctx, const at::Tensor& x, const NodeDataPtr<Call>& call) {
///       save_node_data(ctx, call);
///       ...
///     }
///     static variable_list backward(AutogradContext* ctx, variable_list gradients) {
///       const auto call = saved_node_data<Call>(ctx); // call->value
template <typename T>
struct NodeData : torch::CustomClassHolder {
  explicit NodeData(T data) : value(std::move(data)) {}
  T value;
};
template <typename T>
using NodeDataPtr = c10::intrusive_ptr<NodeData<T>>;

template <typename T>
NodeDataPtr<T> node_data(T value) {
  return c10::make_intrusive<NodeData<T>>(std::move(value));
}

template <typename T>
void save_node_data(torch::autograd::AutogradContext* ctx, const NodeDataPtr<T>& data) {
  ctx->saved_data["node_data"] = c10::IValue::make_capsule(data);
}

template <typename T>
NodeDataPtr<T> saved_node_data(torch::autograd::AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<NodeData<T>>(ctx->saved_data["node_data"].toCapsule());
}

/// For backwards that have no gradient of their own.
/// Throws: ShapeError naming `what` when one is asked for.
inline void require_first_order(const char* what) {
  if (at::GradMode::is_enabled()) {
    throw ShapeError(tessera::str(
        "the gradient of ",
        what,
        " cannot be differentiated again; call backward without create_graph"));
  }
}

} // namespace tessera
