#pragma once

#include <memory>
#include <vector>

#include "tessera/nn/managed/managed_layer.h"

namespace tessera::nn::managed {

/// Transformer layers one after the other with activation checkpointing: only
/// the input of each layer is kept, and it lies on the mesh as every activation
/// (distributed activation checkpointing). All memory of products is taken
/// once, at the first batch of a size (see Buffers).
///
/// Parameters are those of `layers`; without `Savings::update_at_once` their
/// gradients are added to `grad`.
///
/// Shapes: [b of my row, s, h of my column] -> the same.
/// Collective over the mesh. Threads: one at a time.
/// Source: Xu et al. 2021, section 3.2.3.
class ManagedStack {
 public:
  /// Throws: ConfigError for layers that cannot be managed, or when `savings`
  /// asks to update at once and there is no `update`.
  ManagedStack(
      std::vector<DistributedTransformerLayer> layers,
      const Savings& savings = {},
      Update update = {});

  /// Keeps the layers' inputs for `backward`.
  at::Tensor forward(const at::Tensor& x);
  /// Gradient of x from that of the last forward's result; valid until the next
  /// `backward`.
  at::Tensor backward(const at::Tensor& gradient);

  const Buffers& buffers() const {
    return buffers_;
  }

 private:
  void reserve(const at::Tensor& x);

  std::vector<DistributedTransformerLayer> modules_;
  Savings savings_;
  Update update_;
  Buffers buffers_;
  std::vector<ManagedLayer> layers_;
  std::vector<at::Tensor> inputs_; // in the checkpoint buffer
};

} // namespace tessera::nn::managed
