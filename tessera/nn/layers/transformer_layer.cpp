#include "tessera/nn/layers/transformer_layer.h"

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/layers/placement.h"
#include "tessera/recompute/kept_products.h"

namespace tessera::nn {

InsideState enter_state(
    const char* module,
    const TensorParallel& parallel,
    const TransformerOptions& o,
    const at::Tensor& hidden,
    const at::Tensor& attention_mask,
    const at::Tensor& cross_states,
    const at::Tensor& cross_mask) {
  check_hidden(module, o, hidden);
  if (o.add_cross_attention && !cross_states.defined()) {
    throw ShapeError(
        tessera::str(module, ": add_cross_attention is true but there are no cross_states"));
  }
  InsideState state;
  state.sizes = sample_sizes(parallel, hidden, attention_mask, cross_mask);
  const Lengths& samples = state.sizes.samples;
  state.hidden = enter(parallel, hidden, samples);
  state.mask =
      mask_for_heads(parallel, attention_mask, head_groups(o), state.sizes.own_masks, samples);
  if (o.add_cross_attention) {
    state.cross_states = enter(parallel, cross_states, samples);
    state.cross_mask =
        mask_for_heads(parallel, cross_mask, head_groups(o), state.sizes.own_cross_masks, samples);
  }
  return state;
}

DistributedTransformerLayerImpl::DistributedTransformerLayerImpl(
    const TransformerOptions& given,
    Role role)
    : options(given), role_(role) {
  check_options("DistributedTransformerLayer", options, parallel());
  TransformerOptions self = options;
  self.cross_attention = false;
  attention_ = register_module("attention", DistributedAttentionLayer(self));
  if (options.add_cross_attention) {
    TransformerOptions cross = options;
    cross.cross_attention = true;
    cross_attention_ = register_module("cross_attention", DistributedAttentionLayer(cross));
  }
  output_ = register_module("output", DistributedTransformerOutputLayer(options));
}

at::Tensor DistributedTransformerLayerImpl::forward_together(
    const at::Tensor& hidden,
    const at::Tensor& mask,
    const Lengths& samples) {
  const at::ScalarType dtype = attention_->dense()->weight.scalar_type();
  const auto normed_by = [&](DistributedLayerNorm norm) { return norm->forward_to(hidden, dtype); };
  const at::Tensor normed = normed_by(attention_->pre_layernorm());
  const at::Tensor for_output =
      options.shared_layernorm ? normed : normed_by(output_->pre_layernorm());
  const at::Tensor attended = attention_->update(normed, mask, {}, samples);
  const recompute::ReturnedCall returned(static_cast<const torch::nn::Module*>(this));
  const at::Tensor put_out = output_->update(for_output, samples);
  return returned.of(
      options.fp32_residual_addition
          ? residual_sum(options, residual_sum(options, hidden, attended), put_out)
          : residual_sum(options, hidden, attended + put_out));
}

at::Tensor DistributedTransformerLayerImpl::forward_part(
    const at::Tensor& hidden,
    const at::Tensor& mask,
    const at::Tensor& cross_states,
    const at::Tensor& cross_mask,
    const Lengths& samples) {
  if (runner_ && !parallel_now().shapes_only) {
    return runner_(*this, hidden, mask);
  }
  if (options.parallel_attention_output) {
    return forward_together(hidden, mask, samples);
  }
  at::Tensor x = attention_->forward_part(hidden, mask, {}, samples);
  if (!cross_attention_.is_empty()) {
    x = cross_attention_->forward_part(x, cross_mask, cross_states, samples);
  }
  const recompute::ReturnedCall returned(
      options.post_layernorm ? nullptr : static_cast<const torch::nn::Module*>(this));
  return returned.of(output_->forward_part(x, samples));
}

TransformerState DistributedTransformerLayerImpl::forward(
    const at::Tensor& hidden,
    const at::Tensor& attention_mask,
    const at::Tensor& cross_states,
    const at::Tensor& cross_mask) {
  const ForwardScope present(*this);
  const TensorParallel parallel = parallel_now();
  at::Tensor y;
  if (role_ == Role::kPart) {
    // Layers of a stack may be on several pipeline ranks, so each one asks for itself.
    Lengths samples;
    if (inside_placement(parallel) == Placement::kOwnSamples) {
      samples = samples_of_ranks(parallel, hidden.size(0));
    }
    y = forward_part(hidden, attention_mask, cross_states, cross_mask, samples);
  } else {
    const InsideState state = enter_state(
        "DistributedTransformerLayer",
        parallel,
        options,
        hidden,
        attention_mask,
        cross_states,
        cross_mask);
    y = leave(
        parallel,
        forward_part(
            state.hidden, state.mask, state.cross_states, state.cross_mask, state.sizes.samples)
            .to(hidden.scalar_type()),
        options.hidden_size,
        state.sizes.samples);
  }
  return {y, attention_mask, cross_states, cross_mask};
}

at::Tensor DistributedTransformerLayerImpl::hidden_states(
    const at::Tensor& hidden,
    const at::Tensor& attention_mask,
    const at::Tensor& cross_states,
    const at::Tensor& cross_mask) {
  return std::get<0>(forward(hidden, attention_mask, cross_states, cross_mask));
}

DistributedTransformerImpl::DistributedTransformerImpl(const TransformerOptions& given)
    : options(given), seq_layers_(register_module("seq_layers", Sequential())) {
  check_options("DistributedTransformer", options, parallel());
  for (std::int64_t i = 0; i < options.num_layers; ++i) {
    TransformerOptions of_layer = options;
    of_layer.layer_idx = i;
    seq_layers_->push_back(DistributedTransformerLayer(of_layer, Role::kPart));
  }
}

at::Tensor DistributedTransformerImpl::forward_part(
    const at::Tensor& hidden,
    const at::Tensor& mask,
    const at::Tensor& cross_states,
    const at::Tensor& cross_mask) {
  return std::get<0>(
      seq_layers_->forward_as<TransformerState>(hidden, mask, cross_states, cross_mask));
}

TransformerState DistributedTransformerImpl::forward(
    const at::Tensor& hidden,
    const at::Tensor& attention_mask,
    const at::Tensor& cross_states,
    const at::Tensor& cross_mask) {
  const ForwardScope present(*this);
  const TensorParallel parallel = parallel_now();
  const InsideState state = enter_state(
      "DistributedTransformer",
      parallel,
      options,
      hidden,
      attention_mask,
      cross_states,
      cross_mask);
  const at::Tensor y = forward_part(state.hidden, state.mask, state.cross_states, state.cross_mask);
  return {
      leave(parallel, y.to(hidden.scalar_type()), options.hidden_size, state.sizes.samples),
      attention_mask,
      cross_states,
      cross_mask};
}

at::Tensor DistributedTransformerImpl::hidden_states(
    const at::Tensor& hidden,
    const at::Tensor& attention_mask,
    const at::Tensor& cross_states,
    const at::Tensor& cross_mask) {
  return std::get<0>(forward(hidden, attention_mask, cross_states, cross_mask));
}

} // namespace tessera::nn
