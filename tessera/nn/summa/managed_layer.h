#pragma once

#include <functional>

#include "tessera/nn/summa/buffers.h"
#include "tessera/nn/summa/layer_norm.h"
#include "tessera/nn/summa/transformer.h"

namespace tessera::nn::two_d {

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
  /// `layer` holds the parameters. Throws: ConfigError for a layer that norms
  /// last or drops out.
  ManagedLayer(TransformerLayer2D layer, Buffers& buffers, Savings savings);

  /// Bytes of each buffer for `positions` rows of activations.
  std::int64_t forward_bytes(std::int64_t positions) const;
  std::int64_t backward_bytes(std::int64_t positions) const;
  std::int64_t parameter_bytes() const;

  /// x [b, s, h of my column] -> the same, in the forward buffer.
  at::Tensor forward(const at::Tensor& x);
  /// Runs the forward again from `x` and then the backward: the gradient of x,
  /// in the backward buffer. `deliver` gets every gradient of a parameter, in
  /// the parameter buffer.
  at::Tensor backward(const at::Tensor& x, const at::Tensor& gradient, const Update& deliver);

 private:
  struct Saved;
  at::Tensor run(const at::Tensor& x, Saved& saved, bool with_result);
  at::Tensor product(const at::Tensor& x, Linear2DImpl& linear);
  at::Tensor input_gradient(const at::Tensor& gradient, Linear2DImpl& linear);
  void parameter_gradients(
      const at::Tensor& x,
      const at::Tensor& gradient,
      Linear2DImpl& linear,
      const Update& deliver);
  at::Tensor norm_gradient(
      const Norm& norm,
      const NormState& state,
      const at::Tensor& gradient,
      LayerNorm2DImpl& module,
      const Update& deliver);
  at::Tensor host_for(const at::Tensor& result);

  TransformerLayer2D layer_;
  Buffers& buffers_;
  Savings savings_;
  Blocks hidden_;
  Blocks inner_;
  Norm norm_;
};

} // namespace tessera::nn::two_d
