#pragma once

#include <sstream>
#include <type_traits>
#include <utility>

#include <torch/optim/optimizer.h>

namespace tessera::state {

/// The map in which a libtorch optimizer keeps its parameters' states.
using OptimizerStateMap = std::decay_t<decltype(std::declval<torch::optim::Optimizer&>().state())>;

/// Where an optimizer keeps the state of `parameter`, for `optimizer.state()`:
/// the address of the tensor's implementation, as text in libtorch 1.13 and as
/// a pointer later. Threads: any.
template <typename Key = OptimizerStateMap::key_type>
Key optimizer_state_key(const at::Tensor& parameter) {
  if constexpr (std::is_pointer_v<Key>) {
    return parameter.unsafeGetTensorImpl();
  } else {
    std::ostringstream text;
    text << parameter.unsafeGetTensorImpl();
    return text.str();
  }
}

} // namespace tessera::state
