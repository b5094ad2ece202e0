#pragma once

#include <utility>

#include "tessera/nn/module.h"
#include "tessera/train/model.h"

namespace tessera {

/// A Model that is called like its net. `Net` is a holder made by
/// TESSERA_MODULE. Threads: step thread only; calls from the step function.
/// Source: the library's documentation, `DistributedModel`.
template <typename Net>
class DistributedModel : public Model {
 public:
  explicit DistributedModel(Net net, ModelOptions options = {})
      : Model(net.ptr(), std::move(options)), net_(std::move(net)) {}

  /// The model's forward. Inside a step (or tracing) only, unless the whole
  /// model is on this rank. Not collective.
  template <typename... Args>
  auto operator()(Args&&... args) const {
    check_call();
    return net_(std::forward<Args>(args)...);
  }

  Net& net() {
    return net_;
  }

 private:
  Net net_;
};

} // namespace tessera
