#pragma once

#include <functional>

#include "tessera/nn/layers/transformer_layer.h"
#include "tessera/nn/managed/buffers.h"

namespace tessera::nn::managed {

/// The three savings of section 3.2.3, each by itself.
struct Savings {
  /// (1) The memory of a product's result takes the gradient of that result.
  bool reuse_outputs = true;
  /// (2) A parameter is updated as soon as its layer's backward is done, and
  /// the memory of its gradient goes to the next layer. Needs `Update`.
  bool update_at_once = false;
  /// (3) The backward does not run again products whose result it does not
  /// need.
  bool skip_products = true;
};

/// Changes a parameter by its gradient, which is gone after the call.
using Update = std::function<void(at::Tensor& parameter, const at::Tensor& gradient)>;

/// One transformer layer (norm first) whose forward and backward are written
/// out, so that every tensor's memory is known: results of products come from
/// the forward buffer, gradients of their inputs from the backward buffer,
/// gradients of parameters from the parameter buffer. What lies between (norms,
/// GELU, attention) is in free memory and gone when the layer is done.
/// No history is recorded. Collective over the mesh. Threads: one at a time.
/// Source: Xu et al. 2021, section 3.2.3 and figure 6.
class ManagedLayer {
 public:
  /// `layer` holds the parameters and lies on a mesh. Throws: ConfigError for a
  /// layer that is not: one that norms first, and only then, with GELU and
  /// biases, without cross attention and dropout.
  ManagedLayer(DistributedTransformerLayer layer, Buffers& buffers, Savings savings);

  /// Bytes of each buffer for `positions` rows of activations.
  std::int64_t forward_bytes(std::int64_t positions) const;
  std::int64_t backward_bytes(std::int64_t positions) const;
  std::int64_t parameter_bytes() const;

  /// x [b, s, h of my column] -> the same, in the forward buffer.
  at::Tensor forward(const at::Tensor& x);
  /// Runs the forward again from `x` and then the backward: the gradient of x,
  /// in memory of its own. `deliver` gets every gradient of a parameter, in the
  /// parameter buffer. Attention runs once: its weights wait for their backward
  /// while that of the output layer runs.
  at::Tensor backward(const at::Tensor& x, const at::Tensor& gradient, const Update& deliver);

 private:
  struct Saved;
  at::Tensor run(const at::Tensor& x, Saved& saved, bool for_backward);
  const summa::Mesh& mesh() const {
    return *layer_->parallel().mesh;
  }
  at::Tensor attention_of(const at::Tensor& qkv) const;
  at::Tensor product(const at::Tensor& x, const DistributedProjection& linear);
  at::Tensor input_gradient(const at::Tensor& gradient, const DistributedProjection& linear);
  void parameter_gradients(
      const at::Tensor& x,
      const at::Tensor& gradient,
      const DistributedProjection& linear,
      const Update& deliver);
  at::Tensor norm_gradient(
      const summa::NormState& state,
      const at::Tensor& gradient,
      const DistributedLayerNorm& module,
      const Update& deliver);
  at::Tensor host_for(const at::Tensor& result);

  DistributedTransformerLayer layer_;
  Buffers& buffers_;
  Savings savings_;
};

} // namespace tessera::nn::managed
