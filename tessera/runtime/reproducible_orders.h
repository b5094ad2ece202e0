#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/autograd/gradient_order.h"
#include "tessera/runtime/buffer_order.h"
#include "tessera/runtime/server_context.h"

namespace tessera::runtime {

/// What the key "reproducible" fixes on a rank, whatever the order of tasks: the order in which
/// gradients are added and buffers are changed. It is kept from step to step.
/// Not collective. Threads: step thread only.
class ReproducibleOrders {
 public:
  /// `context` outlives it.
  explicit ReproducibleOrders(const ServerContext& context) : context_(context) {}

  /// Called before each step, since a model that was added or removed changes what is ordered, on
  /// all ranks alike.
  void begin(int microbatches);

  /// Both are nullptr where the key is off, `buffers` also where no rank has a buffer.
  GradientOrder* gradients() {
    return context_.reproducible ? &gradients_ : nullptr;
  }
  BufferOrder* buffers() {
    return buffers_.get();
  }

 private:
  void follow_directory();

  const ServerContext& context_;
  GradientOrder gradients_;
  std::unique_ptr<BufferOrder> buffers_;
  std::vector<at::Tensor> parameters_; // of this rank
  int revision_ = -1; // of the directory, for which the orders were made
};

} // namespace tessera::runtime
